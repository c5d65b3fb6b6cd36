// NVIDIA GPUs as Devices: kernels compiled by NVRTC, run through the driver API.
//
// Neither library is linked: both are opened when a device is asked for, so a binary with CUDA
// starts where there is none. sim/backend/no_cuda defines the same functions for a build without.
// Errors: FAILED_PRECONDITION where this build, this machine or this driver has no CUDA, with what
//   is missing; NOT_FOUND for an index beyond the devices.
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/compile_watch.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::sim::cuda {

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  std::string uuid;          // GPU-xxxxxxxx-..., of a part MIG-...; as nvidia-smi prints it
  std::string architecture;  // sm_90
  int64_t memory_bytes = 0;
  std::string driver;   // the CUDA version that the driver speaks, 13.0
  absl::Status status;  // not OK: the driver would not describe it, and all but the index is empty
};

// Whether this build can use a GPU at all.
bool IsCudaBuilt();
// The toolkit's version that this build was made with, 13.0; empty without.
std::string CudaBuildVersion();

// Every GPU of the machine, at the place of its index; not empty.
absl::StatusOr<std::vector<CudaDeviceInfo>> ListCudaDevices();

struct CudaDeviceOptions {
  int index = 0;
  std::string kernel_cache_folder;  // empty: compiled kernels are kept in memory alone
  std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>();
};

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const CudaDeviceOptions& options);

}  // namespace simgrad::sim::cuda
