#include "sim/backend/cuda/cuda_executor.h"

#include <algorithm>
#include <utility>

#include "sim/backend/check_batch.h"
#include "sim/backend/cuda/cuda_run.h"

namespace simgrad::sim {
namespace {

using cuda::GeneratedSource;

absl::StatusOr<GeneratedSource> GenerateFor(const NumericalProgram& program,
                                            std::vector<bool> per_step,
                                            std::optional<cuda::Mapping> mapping) {
  cuda::GenerateOptions options;
  options.mapping = mapping.value_or(cuda::ChooseMapping(program));
  options.per_step = std::move(per_step);
  return cuda::Generate(program, options);
}

class CudaExecutor : public Executor {
 public:
  CudaExecutor(std::vector<std::shared_ptr<cuda::Device>> devices,
               const CudaExecutorOptions& options)
      : devices_(std::move(devices)), options_(options) {}
  std::string_view name() const override { return "cuda"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (absl::Status fits = CheckBatch(batch); !fits.ok()) return fits;
    std::vector<bool> per_step;
    for (const Binding& binding : batch.inputs) per_step.push_back(binding.per_step);
    absl::StatusOr<GeneratedSource> source =
        GenerateFor(*batch.program, std::move(per_step), options_.mapping);
    if (!source.ok()) return source.status();
    const std::shared_ptr<cuda::Device> device = LeastLoaded();
    auto module = device->Load(*source);
    if (!module.ok()) return module.status();
    auto run =
        cuda::CudaRun::Create(device, std::make_shared<const GeneratedSource>(std::move(*source)),
                              *std::move(module), std::move(batch), std::move(options), options_);
    if (!run.ok()) return run.status();
    return std::unique_ptr<Run>(*std::move(run));
  }

 private:
  std::shared_ptr<cuda::Device> LeastLoaded() const {
    return *std::min_element(devices_.begin(), devices_.end(), [](const auto& a, const auto& b) {
      return a->runs.load() < b->runs.load();
    });
  }

  std::vector<std::shared_ptr<cuda::Device>> devices_;
  CudaExecutorOptions options_;
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
  const absl::StatusOr<GeneratedSource> source =
      GenerateFor(program, std::vector<bool>(program.program.inputs.size(), false), std::nullopt);
  if (!source.ok()) return source.status();
  for (const auto& device : devices) {
    if (const auto module = device->Load(*source); !module.ok()) return module.status();
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim
