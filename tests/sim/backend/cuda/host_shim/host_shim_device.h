// A Device that runs generated kernels on the host: their text through the host compiler, their
// threads as fibers in a shuffled order.
//
// Memory is filled with a pattern when it is taken and has a guard behind it, so that kernels that
// read what nobody wrote, or write past an end, are found out. Streams work as late as the waits
// allow (late_stream.h).
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

// What happened on a device, told when it goes.
struct HostShimCounts {
  int64_t allocations = 0;
  int64_t event_waits = 0;    // of the host and of streams
  int64_t reads = 0;          // of device memory by the host, one after the other
  int64_t pinned_copies = 0;  // to pinned memory, that nobody waits for
};

struct HostShimOptions {
  uint64_t seed = 1;  // of the order of threads
  int64_t memory_bytes = int64_t{8} << 30;
  int64_t pinned_bytes = int64_t{8} << 30;
  // Faults, counted from 0; negative: none. The allocation that fails; the wait that is left out.
  int64_t failing_allocation = -1;
  int64_t skipped_wait = -1;
  int64_t failing_read = -1;         // and all behind it: the device is lost
  int64_t failing_pinned_copy = -1;  // as it comes to it, and all behind it
  int64_t hurried_stream = -1;       // by the order of opening; the others work late
  std::shared_ptr<HostShimCounts> counts;
  // Applied to a text before it is compiled: faults that must be caught.
  std::function<std::string(std::string)> plant;
  std::function<void(const std::string& entry)> on_launch;
};

std::shared_ptr<sim::cuda::Device> MakeHostShimDevice(const HostShimOptions& options = {});

}  // namespace simgrad::tests
