// Memory of a CUDA device: taken, given back, and what is kept for the next request.
//
// From the device's pool, which keeps up to a quarter of the memory. Where the driver has no pools
// (some profiles of virtual GPUs) every piece comes from the driver and goes back to it.
// Errors: RESOURCE_EXHAUSTED with the figures; those of cuda_context.h. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/driver/cuda_context.h"

namespace simgrad::sim::cuda {

class CudaMemory {
 public:
  // `bytes`: of the device.
  static absl::StatusOr<std::shared_ptr<CudaMemory>> Open(std::shared_ptr<Context> context,
                                                          int64_t bytes);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // Kept memory makes room first, if need be.
  absl::StatusOr<CUdeviceptr> Take(int64_t bytes);
  // Its users have waited for their work (device.h, Buffer).
  void Give(CUdeviceptr data);
  // The result of call(). Where memory is short, what is kept makes room and the call is made once more.
  // Work that runs need not be waited for: it uses nothing of what is kept.
  template <class Call>
  CUresult WithRoom(const Call& call) {
    const CUresult result = call();
    return result == CUDA_ERROR_OUT_OF_MEMORY && Trim() ? call() : result;
  }
  // RESOURCE_EXHAUSTED with the figures of the device and `asked`.
  absl::Status Short(const std::string& asked) const;

 private:
  struct Attempt {
    CUresult result;
    const char* call;
    CUdeviceptr data;
  };

  explicit CudaMemory(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  absl::Status OpenPool(int64_t bytes);
  Attempt TakeOnce(int64_t bytes) const;
  // Hands back to the device what is kept; whether there may be more room now.
  bool Trim();

  std::shared_ptr<Context> context_;
  CUmemoryPool pool_ = nullptr;  // null: none, and no stream
  // Memory of the pool is taken and given back in the order of this stream.
  CUstream stream_ = nullptr;
};

}  // namespace simgrad::sim::cuda
