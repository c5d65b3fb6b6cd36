// The CUDA device of a build without CUDA: there is none, and it says so.
#include "sim/backend/cuda/driver/cuda_device.h"

namespace simgrad::sim::cuda {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this build has no CUDA; build with -DSIMGRAD_CUDA=ON where the CUDA toolkit is installed");
}

}  // namespace

bool IsCudaBuilt() { return false; }
std::string CudaBuildVersion() { return ""; }

absl::StatusOr<std::vector<CudaDeviceInfo>> ListCudaDevices() { return NotBuilt(); }

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const CudaDeviceOptions&) {
  return NotBuilt();
}

}  // namespace simgrad::sim::cuda
