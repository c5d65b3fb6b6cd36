// The executor that runs generated kernels on a device.
//
// Maths: the bits of the reference executor for everything in sim/backend/executor.h.
// Errors: those of device.h. Threads: immutable; every Run has a stream of its own.
#pragma once

#include <memory>
#include <optional>

#include "sim/backend/cuda/device.h"
#include "sim/backend/executor.h"

namespace simgrad::sim {

struct CudaExecutorOptions {
  std::optional<cuda::Mapping> mapping;  // unset: chosen per program
  int block = 0;                         // threads; 0: chosen
  int64_t grid = 0;                      // blocks; 0: what fills the device
};

std::unique_ptr<Executor> MakeCudaExecutor(std::shared_ptr<cuda::Device> device,
                                           const CudaExecutorOptions& options = {});

}  // namespace simgrad::sim
