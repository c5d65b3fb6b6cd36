// A launch of a kernel that the host compiler has compiled against cuda_host_shim.h.
//
// Errors: INTERNAL for an entry point that is not there and for threads that part at a barrier.
// Threads: launches run one after the other, whoever asks.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/kernel_abi.h"

namespace simgrad::tests {

// `find` is dlsym of the library. The threads of a block take turns in an order drawn from `order`.
absl::Status LaunchOnHost(const std::function<void*(const char*)>& find, const std::string& entry,
                          const sim::cuda::LaunchShape& shape, const sim::cuda::KernelArgs& args,
                          std::mt19937_64& order);

}  // namespace simgrad::tests
