#include "sim/backend/cuda/cuda_executor.h"

#include <utility>

#include "sim/backend/check_batch.h"
#include "sim/backend/cuda/cuda_run.h"

namespace simgrad::sim {
namespace {

using cuda::GeneratedSource;

class CudaExecutor : public Executor {
 public:
  CudaExecutor(std::shared_ptr<cuda::Device> device, const CudaExecutorOptions& options)
      : device_(std::move(device)), options_(options) {}
  std::string_view name() const override { return "cuda"; }

  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (absl::Status fits = CheckBatch(batch); !fits.ok()) return fits;
    cuda::GenerateOptions generate;
    generate.mapping = options_.mapping.value_or(cuda::ChooseMapping(*batch.program));
    for (const Binding& binding : batch.inputs) generate.per_step.push_back(binding.per_step);
    absl::StatusOr<GeneratedSource> source = cuda::Generate(*batch.program, generate);
    if (!source.ok()) return source.status();
    auto module = device_->Load(*source);
    if (!module.ok()) return module.status();
    auto run =
        cuda::CudaRun::Create(device_, std::make_shared<const GeneratedSource>(std::move(*source)),
                              *std::move(module), std::move(batch), std::move(options), options_);
    if (!run.ok()) return run.status();
    return std::unique_ptr<Run>(*std::move(run));
  }

 private:
  std::shared_ptr<cuda::Device> device_;
  CudaExecutorOptions options_;
};

}  // namespace

std::unique_ptr<Executor> MakeCudaExecutor(std::shared_ptr<cuda::Device> device,
                                           const CudaExecutorOptions& options) {
  return std::make_unique<CudaExecutor>(std::move(device), options);
}

}  // namespace simgrad::sim
