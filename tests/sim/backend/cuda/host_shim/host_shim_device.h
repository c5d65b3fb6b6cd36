// A Device that runs generated kernels on the host: their text through the host compiler, their
// threads as fibers in a shuffled order.
//
// Memory is filled with a pattern when it is taken and has a guard behind it, so that kernels that
// read what nobody wrote, or write past an end, are found out.
// Errors: INTERNAL with the compiler's log; INTERNAL for barriers that part and for a broken guard;
//   RESOURCE_EXHAUSTED above the memory limit.
// Threads: may be used by several threads; launches of one module run one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sim/backend/cuda/device.h"

namespace simgrad::tests {

struct HostShimOptions {
  uint64_t seed = 1;  // of the order of threads
  int64_t memory_bytes = int64_t{8} << 30;
  // Applied to a text before it is compiled: faults that must be caught.
  std::function<std::string(std::string)> plant;
};

std::shared_ptr<sim::cuda::Device> MakeHostShimDevice(const HostShimOptions& options = {});

}  // namespace simgrad::tests
