#include "sim/backend/host_executor.h"

#include <utility>

#include "sim/backend/compiled/compiled_executor.h"

namespace simgrad::sim {
namespace {

compiled::CompiledOptions OptionsOf(const HostOptions& host) {
  compiled::CompiledOptions options;
  options.kernels.folder = host.kernel_folder;
  options.kernels.watch = host.watch;
  return options;
}

class Host : public HostExecutor {
 public:
  explicit Host(const HostOptions& options)
      : compiled_(compiled::MakeCompiledExecutor(OptionsOf(options))) {}
  std::string_view name() const override { return "cpu"; }
  std::string instruction_set() const override {
    return std::string(compiled::IsaName(compiled::BestIsa()));
  }
  std::string note() const override { return ""; }
  HeldCode held() const override {
    const compiled::CompiledUse use = compiled_->use();
    return {.kernels = use.compiler.kernels,
            .kernel_bytes = use.compiler.bytes,
            .plans = use.plans,
            .plan_bytes = use.plan_bytes};
  }
  int64_t Relieve(int64_t bytes) override { return compiled_->Relieve(bytes); }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    return compiled_->Create(std::move(batch), std::move(options));
  }
  absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch batch, RunOptions options,
                                             const ForwardCounts& counts) override {
    return compiled_->Adopt(std::move(batch), std::move(options), counts);
  }
  absl::StatusOr<std::optional<MemoryNeed>> NeedOf(const Batch& batch, const RunOptions& options,
                                                   const RangeSteps& steps) const override {
    return compiled_->NeedOf(batch, options, steps);
  }

 private:
  const std::unique_ptr<compiled::CompiledExecutor> compiled_;
};

}  // namespace

std::unique_ptr<HostExecutor> MakeHostExecutor(const HostOptions& options) {
  return std::make_unique<Host>(options);
}

}  // namespace simgrad::sim
