// The functions of the CUDA driver, found at run time, and the one check that all calls go through.
//
// Errors: FAILED_PRECONDITION where there is no driver or it is too old. Threads: any.
#pragma once

#include <cuda.h>

#include <string>

#include "absl/status/statusor.h"

namespace simgrad::sim::cuda {

// Name for name the functions of cuda.h that are used, under the version that its macros choose.
#define SIMGRAD_DRIVER_FUNCTIONS(F)              \
  F(cuInit)                                      \
  F(cuDriverGetVersion)                          \
  F(cuGetErrorName)                              \
  F(cuGetErrorString)                            \
  F(cuDeviceGetCount)                            \
  F(cuDeviceGet)                                 \
  F(cuDeviceGetName)                             \
  F(cuDeviceGetUuid)                             \
  F(cuDeviceGetAttribute)                        \
  F(cuDeviceTotalMem)                            \
  F(cuDevicePrimaryCtxRetain)                    \
  F(cuDevicePrimaryCtxRelease)                   \
  F(cuCtxSetCurrent)                             \
  F(cuCtxSynchronize)                            \
  F(cuMemGetInfo)                                \
  F(cuDeviceGetDefaultMemPool)                   \
  F(cuMemPoolSetAttribute)                       \
  F(cuMemPoolTrimTo)                             \
  F(cuMemAlloc)                                  \
  F(cuMemFree)                                   \
  F(cuMemAllocAsync)                             \
  F(cuMemFreeAsync)                              \
  F(cuMemHostAlloc)                              \
  F(cuMemFreeHost)                               \
  F(cuMemcpyHtoDAsync)                           \
  F(cuMemcpyDtoHAsync)                           \
  F(cuMemcpyDtoDAsync)                           \
  F(cuMemsetD8Async)                             \
  F(cuStreamCreate)                              \
  F(cuStreamDestroy)                             \
  F(cuStreamSynchronize)                         \
  F(cuStreamWaitEvent)                           \
  F(cuEventCreate)                               \
  F(cuEventDestroy)                              \
  F(cuEventRecord)                               \
  F(cuEventSynchronize)                          \
  F(cuEventElapsedTime)                          \
  F(cuModuleLoadData)                            \
  F(cuModuleUnload)                              \
  F(cuModuleGetFunction)                         \
  F(cuFuncGetAttribute)                          \
  F(cuFuncSetAttribute)                          \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  F(cuLaunchKernel)

struct Driver {
#define SIMGRAD_DRIVER_MEMBER_NAMED(name) decltype(&::name) name = nullptr;
#define SIMGRAD_DRIVER_MEMBER(name) SIMGRAD_DRIVER_MEMBER_NAMED(name)
  SIMGRAD_DRIVER_FUNCTIONS(SIMGRAD_DRIVER_MEMBER)
#undef SIMGRAD_DRIVER_MEMBER
#undef SIMGRAD_DRIVER_MEMBER_NAMED
  int version = 0;  // 13000 for 13.0

  // Opened and initialised once, at the first call.
  static absl::StatusOr<const Driver*> Get();
};

// OK, RESOURCE_EXHAUSTED for memory, DeviceLostError for an error after which the process cannot
// use the device any more, INTERNAL for the rest; each with the driver's words and the call.
absl::Status DriverStatus(const Driver& driver, CUresult result, const char* call);
// "CUDA_ERROR_OUT_OF_MEMORY".
std::string ErrorName(const Driver& driver, CUresult result);

}  // namespace simgrad::sim::cuda
