// The memory that kernels of the shim may use: filled with a pattern when it is taken, a guard
// behind.
//
// Errors: RESOURCE_EXHAUSTED above the limit of its kind, and for the allocation that is to fail.
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "absl/status/statusor.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::tests {

inline constexpr uint8_t kFreshByte = 0xCB;

class ShimMemory {
 public:
  // `failing`: the number of the allocation that fails, counted from 0; negative: none.
  ShimMemory(int64_t device_limit, int64_t pinned_limit, int64_t failing)
      : limit_{device_limit, pinned_limit}, failing_(failing) {}
  ~ShimMemory();
  absl::StatusOr<void*> Take(int64_t bytes, sim::cuda::MemoryKind kind);
  void Give(void* data);
  int64_t taken(sim::cuda::MemoryKind kind);
  int64_t allocations();
  bool IsPinned(const void* data);
  // Whether no guard was overwritten, ever.
  bool AllWhole();

 private:
  struct Block {
    int64_t bytes;
    sim::cuda::MemoryKind kind;
  };

  int64_t limit_[2];
  int64_t failing_;
  std::mutex mutex_;
  int64_t taken_[2] = {0, 0};
  int64_t allocations_ = 0;
  std::map<const void*, Block> held_;
  bool broken_ = false;
};

}  // namespace simgrad::tests
