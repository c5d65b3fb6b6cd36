#include "sim/backend/cuda/run/cuda_executor.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/cuda/run/cuda_counts.h"
#include "sim/backend/cuda/run/cuda_run.h"
#include "sim/backend/cuda/source_cache.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kMostSourceBytes = int64_t{64} << 20;

cuda::GenerateOptions OptionsFor(const NumericalProgram& program, std::vector<bool> per_step,
                                 const CudaExecutorOptions& asked, Recording recording) {
  cuda::GenerateOptions options;
  options.mapping = asked.mapping ? *asked.mapping : cuda::ChooseMapping(program);
  if (asked.longest_function > 0) options.longest_function = asked.longest_function;
  options.per_step = std::move(per_step);
  options.recording = recording == Recording::kCounts ? Recording::kSummary : recording;
  return options;
}

// Waiting for the best kernel pays where the run takes longer than that: a kernel of little optimisation
// is taken to do at least 10^9 operations a second, loops counted once.
cuda::KernelChoice ChoiceFor(const Batch& batch, const std::string& text) {
  constexpr double kQuickOperations = 1e9;  // a second
  double operations = 0;
  for (const Value& value : batch.program->program.values) {
    operations += static_cast<double>(ElementCount(value.type.shape));
  }
  operations *= static_cast<double>(batch.instances) * static_cast<double>(batch.steps);
  const double seconds = cuda::BestCompileSeconds(static_cast<int64_t>(text.size()));
  return operations < seconds * kQuickOperations ? cuda::KernelChoice::kSoonest
                                                 : cuda::KernelChoice::kBest;
}

class CudaExecutor : public Executor {
 public:
  CudaExecutor(std::vector<std::shared_ptr<cuda::Device>> devices,
               const CudaExecutorOptions& options)
      : devices_(std::move(devices)),
        options_(options),
        sources_(kMostSourceBytes, options.watch) {}
  std::string_view name() const override { return "cuda"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    return NewRun(std::move(batch), std::move(options), nullptr);
  }
  // On the device that did the forward pass: the memory of what was saved is its own.
  absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch batch, RunOptions options,
                                             const ForwardCounts& counts) override {
    const auto* const own = dynamic_cast<const cuda::CudaCounts*>(&counts);
    if (own == nullptr) return nullptr;
    const bool has = std::find(devices_.begin(), devices_.end(), own->device()) != devices_.end();
    return has ? NewRun(std::move(batch), std::move(options), own) : nullptr;
  }
  bool IsAtWork() const override {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const auto& device) { return device->launched > 0; });
  }
  int64_t Relieve(int64_t bytes) override {
    int64_t freed = sources_.Relieve(bytes);
    for (const auto& device : devices_) {
      if (freed < bytes) freed += device->Relieve(bytes - freed);
    }
    return freed;
  }

 private:
  // `counts`: of the run that is adopted, if one is; null if they say nothing of this one.
  absl::StatusOr<std::unique_ptr<Run>> NewRun(Batch batch, RunOptions options,
                                              const cuda::CudaCounts* counts) {
    if (absl::Status fits = CheckBatch(batch, options.stop); !fits.ok()) return fits;
    std::vector<bool> per_step;
    for (const Binding& binding : batch.inputs) per_step.push_back(binding.per_step);
    const auto source = sources_.Get(batch.program, OptionsFor(*batch.program, std::move(per_step),
                                                               options_, options.recording));
    if (!source.ok()) return source.status();
    std::optional<std::vector<uint64_t>> units;
    if (counts != nullptr) {
      units = counts->UnitsFor(*batch.program, **source);
      if (!units) return nullptr;
    }
    const std::shared_ptr<cuda::Device> device = TakeTurn(counts);
    const absl::Cleanup counted_by_the_run = [&] { --device->runs; };
    auto module =
        device->Load(**source, options_.kernel.value_or(ChoiceFor(batch, (*source)->text)));
    if (!module.ok()) return module.status();
    auto run = cuda::CudaRun::Create(device, *source, *std::move(module), std::move(batch),
                                     std::move(options), options_);
    if (!run.ok()) return run.status();
    if (units) (*run)->TakeUnits(*std::move(units));
    return std::unique_ptr<Run>(*std::move(run));
  }

  // The device with the fewest runs, or that of the counts, with one more: chosen and counted at once, so that requests
  // that come together do not all wait for the kernels of the same device.
  std::shared_ptr<cuda::Device> TakeTurn(const cuda::CudaCounts* counts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto& device =
        counts != nullptr
            ? counts->device()
            : *std::min_element(devices_.begin(), devices_.end(), [](const auto& a, const auto& b) {
                return a->runs.load() < b->runs.load();
              });
    ++device->runs;
    return device;
  }

  std::vector<std::shared_ptr<cuda::Device>> devices_;
  CudaExecutorOptions options_;
  std::mutex mutex_;
  cuda::SourceCache sources_;
};

}  // namespace

std::unique_ptr<Executor> MakeCudaExecutor(std::shared_ptr<cuda::Device> device,
                                           const CudaExecutorOptions& options) {
  return MakeCudaExecutor(std::vector<std::shared_ptr<cuda::Device>>{std::move(device)}, options);
}

std::unique_ptr<Executor> MakeCudaExecutor(std::vector<std::shared_ptr<cuda::Device>> devices,
                                           const CudaExecutorOptions& options) {
  return std::make_unique<CudaExecutor>(std::move(devices), options);
}

absl::Status WarmKernels(const std::vector<std::shared_ptr<cuda::Device>>& devices,
                         const NumericalProgram& program) {
  const auto source = cuda::Generate(
      program, OptionsFor(program, std::vector<bool>(program.program.inputs.size(), false), {},
                          Recording::kSummary));
  if (!source.ok()) return source.status();
  for (const auto& device : devices) {
    const auto module = device->Load(*source, cuda::KernelChoice::kBest);
    if (!module.ok()) return module.status();
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim
