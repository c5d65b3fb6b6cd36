#include "sim/backend/cuda/cuda_context.h"

namespace simgrad::sim::cuda {

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
  if (status.ok() && !launched_) status = begin_.Record(stream_);
  if (!status.ok()) return status;
  void* parameters[] = {const_cast<KernelArgs*>(&args)};
  status = context_->Check(driver().cuLaunchKernel(*function, static_cast<unsigned>(shape.grid), 1,
                                                   1, static_cast<unsigned>(shape.block), 1, 1,
                                                   static_cast<unsigned>(shape.shared_bytes),
                                                   stream_, parameters, nullptr),
                           "cuLaunchKernel");
  // Behind every launch, so that the time ends with the last one and not with what is copied after.
  if (status.ok()) status = end_.Record(stream_);
  launched_ = launched_ || status.ok();
  return status;
}

absl::Status CudaStream::Wait() {
  absl::Status status = context_->Enter();
  const bool timed = launched_;
  launched_ = false;
  if (status.ok()) {
    status = context_->Check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }
  if (status.ok() && timed) context_->AddBusy(begin_.SecondsUntil(end_));
  return status;
}

}  // namespace simgrad::sim::cuda
