#include "sim/backend/cuda/cuda_context.h"

#include <utility>

#include "sim/backend/cuda/kernel_image.h"

namespace simgrad::sim::cuda {

absl::StatusOr<std::shared_ptr<const Module>> CudaModule::Load(std::shared_ptr<Context> context,
                                                               const std::string& image) {
  const auto images = SplitImages(image);
  if (!images.ok()) return images.status();
  if (absl::Status status = context->Enter(); !status.ok()) return status;
  std::shared_ptr<CudaModule> module(new CudaModule(context));
  for (const std::string& part : *images) {
    CUmodule loaded = nullptr;
    const absl::Status status = context->Check(
        context->driver().cuModuleLoadData(&loaded, part.c_str()), "cuModuleLoadData");
    if (!status.ok()) return status;
    module->parts_.push_back(loaded);
  }
  return std::shared_ptr<const Module>(std::move(module));
}

absl::Status AllowShared(Context& context, CUfunction function, int64_t bytes) {
  constexpr int64_t kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return absl::OkStatus();
  return context.Check(
      context.driver().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          static_cast<int>(bytes)),
      "cuFuncSetAttribute");
}

absl::Status CudaStream::Launch(const Module& module, const std::string& entry, LaunchShape shape,
                                const KernelArgs& args) {
  if (absl::Status status = context_->Enter(); !status.ok()) return status;
  const auto function = static_cast<const CudaModule&>(module).Find(entry);
  if (!function.ok()) return function.status();
  absl::Status status = AllowShared(*context_, *function, shape.shared_bytes);
  if (launches_ == timed_.size()) timed_.push_back(std::make_unique<Timed>(context_));
  if (status.ok()) status = timed_[launches_]->begin.Record(stream_);
  if (!status.ok()) return status;
  void* parameters[] = {const_cast<KernelArgs*>(&args)};
  status = context_->Check(driver().cuLaunchKernel(*function, static_cast<unsigned>(shape.grid), 1,
                                                   1, static_cast<unsigned>(shape.block), 1, 1,
                                                   static_cast<unsigned>(shape.shared_bytes),
                                                   stream_, parameters, nullptr),
                           "cuLaunchKernel");
  if (status.ok()) status = timed_[launches_]->end.Record(stream_);
  if (status.ok()) ++launches_;
  return status;
}

absl::Status CudaStream::Wait() {
  absl::Status status = context_->Enter();
  const size_t launches = std::exchange(launches_, 0);
  if (status.ok()) {
    status = context_->Check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }
  double busy = 0.0;
  for (size_t i = 0; status.ok() && i < launches; ++i) {
    busy += timed_[i]->begin.SecondsUntil(timed_[i]->end);
  }
  if (busy > 0.0) context_->AddBusy(busy);
  return status;
}

}  // namespace simgrad::sim::cuda
