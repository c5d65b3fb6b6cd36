#include "sim/backend/cpu/cpu_executor.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/cpu/cpu_run.h"
#include "sim/backend/cpu/memory_need.h"

namespace simgrad::sim {
namespace cpu {

#if !defined(SIMGRAD_CPU_X86)
const KernelTable* Avx2Kernels() { return nullptr; }
const KernelTable* Avx512Kernels() { return nullptr; }
#endif

namespace {

bool HasAvx2() {
#if defined(SIMGRAD_CPU_X86)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool HasAvx512() {
#if defined(SIMGRAD_CPU_X86)
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

const KernelTable& KernelsOf(CpuInstructions instructions) {
  switch (instructions) {
    case CpuInstructions::kBaseline:
      break;
    case CpuInstructions::kAvx2:
      return *Avx2Kernels();
    case CpuInstructions::kAvx512:
      return *Avx512Kernels();
    case CpuInstructions::kBest:
      if (HasAvx512()) return *Avx512Kernels();
      if (HasAvx2()) return *Avx2Kernels();
      break;
  }
  return *BaselineKernels();
}

class CpuExecutor : public Executor {
 public:
  explicit CpuExecutor(const CpuExecutorOptions& options)
      : options_(options),
        plans_(IsSupported(options.instructions)
                   ? std::make_shared<PlanCache>(KernelsOf(options.instructions))
                   : nullptr) {}
  std::string_view name() const override { return "cpu"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (plans_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this processor has no ", std::string(CpuInstructionsName(options_.instructions))));
    }
    if (absl::Status fits = CheckBatch(batch); !fits.ok()) return fits;
    std::unique_ptr<Run> run;
    const absl::Status made = UntilStopped([&] {
      run = std::make_unique<CpuRun>(std::move(batch), std::move(options), plans_,
                                     options_.block_width);
    });
    if (!made.ok()) return made;
    return run;
  }

  absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& batch, const RunOptions& options,
                                                   const RangeSteps& steps) const override {
    if (absl::Status fits = CheckBatch(batch); !fits.ok()) return fits;
    if (plans_ == nullptr) return std::optional<MemoryNeed>();
    MemoryNeed need;
    const absl::Status told = UntilStopped(
        [&] { need = NeedOfRun(batch, options, steps, *plans_, options_.block_width); });
    if (!told.ok()) return told;
    return need;
  }

 private:
  const CpuExecutorOptions options_;
  const std::shared_ptr<PlanCache> plans_;  // null: the processor lacks the instructions
};

}  // namespace
}  // namespace cpu

std::string_view CpuInstructionsName(CpuInstructions instructions) {
  switch (instructions) {
    case CpuInstructions::kBest:
      return "best";
    case CpuInstructions::kBaseline:
      return "baseline";
    case CpuInstructions::kAvx2:
      return "avx2";
    case CpuInstructions::kAvx512:
      break;
  }
  return "avx512";
}

bool IsSupported(CpuInstructions instructions) {
  switch (instructions) {
    case CpuInstructions::kAvx2:
      return cpu::HasAvx2();
    case CpuInstructions::kAvx512:
      return cpu::HasAvx512();
    default:
      return true;
  }
}

std::unique_ptr<Executor> MakeCpuExecutor(const CpuExecutorOptions& options) {
  return std::make_unique<cpu::CpuExecutor>(options);
}

}  // namespace simgrad::sim
