// The executor that runs generated kernels on a device.
//
// Maths: the bits of the reference executor for everything in sim/backend/executor.h.
// Errors: those of device.h. Threads: immutable; every Run has a stream of its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/compile_watch.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/executor.h"

namespace simgrad::sim {

struct CudaExecutorOptions {
  std::optional<cuda::Mapping> mapping;      // unset: chosen per program
  int block = 0;                             // threads, at most kMostThreads; 0: chosen
  int64_t grid = 0;                          // blocks; 0: what fills the device
  std::optional<cuda::KernelChoice> kernel;  // unset: chosen by work and text
  int64_t steps = 0;                         // of one launch at most; 0: as its records allow
  // Device memory of a run for checkpoints, and for the records of a reversal; unset: a share of
  // the device. What goes beyond lies in pinned memory of the host.
  std::optional<int64_t> checkpoint_bytes;
  std::optional<int64_t> record_bytes;
  int64_t longest_function = 0;  // statements (GenerateOptions); 0: the default
  // Asked for the memory of texts that are kept.
  std::shared_ptr<CompileWatch> watch = std::make_shared<NoCompileWatch>();
};

std::unique_ptr<Executor> MakeCudaExecutor(std::shared_ptr<cuda::Device> device,
                                           const CudaExecutorOptions& options = {});
// A run goes to the device with the fewest. At least one device.
std::unique_ptr<Executor> MakeCudaExecutor(std::vector<std::shared_ptr<cuda::Device>> devices,
                                           const CudaExecutorOptions& options = {});
// Generates and compiles what runs of the program will need, on all devices of the list.
absl::Status WarmKernels(const std::vector<std::shared_ptr<cuda::Device>>& devices,
                         const NumericalProgram& program);

}  // namespace simgrad::sim
