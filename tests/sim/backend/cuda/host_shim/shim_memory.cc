#include "tests/sim/backend/cuda/host_shim/shim_memory.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace simgrad::tests {
namespace {

constexpr uint8_t kGuard = 0xA7;
constexpr int64_t kGuardBytes = 64;
// Behind the guard: faults that are planted do not reach what is not the kernel's.
constexpr int64_t kSlackBytes = 1 << 20;

bool Whole(const void* data, int64_t bytes) {
  const uint8_t* const guard = static_cast<const uint8_t*>(data) + bytes;
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != kGuard) return false;
  }
  return true;
}

size_t Index(sim::cuda::MemoryKind kind) { return static_cast<size_t>(kind); }

}  // namespace

ShimMemory::~ShimMemory() {
  for (auto& [data, block] : held_) std::free(const_cast<void*>(data));
}

absl::StatusOr<void*> ShimMemory::Take(int64_t bytes, sim::cuda::MemoryKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (allocations_++ == failing_) return absl::ResourceExhaustedError("this allocation fails");
  const int64_t limit = limit_[Index(kind)];
  int64_t& taken = taken_[Index(kind)];
  if (taken + bytes > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes asked for; ", limit - taken, " of ", limit, " are free"));
  }
  uint8_t* const data =
      static_cast<uint8_t*>(std::malloc(static_cast<size_t>(bytes + kGuardBytes + kSlackBytes)));
  if (data == nullptr) return absl::ResourceExhaustedError("malloc");
  std::memset(data, kFreshByte, static_cast<size_t>(bytes));
  std::memset(data + bytes, kGuard, kGuardBytes);
  held_[data] = {bytes, kind};
  taken += bytes;
  return data;
}

void ShimMemory::Give(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Block block = held_.at(data);
  broken_ = broken_ || !Whole(data, block.bytes);
  taken_[Index(block.kind)] -= block.bytes;
  held_.erase(data);
  std::free(data);
}

int64_t ShimMemory::taken(sim::cuda::MemoryKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return taken_[Index(kind)];
}

int64_t ShimMemory::allocations() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocations_;
}

bool ShimMemory::IsPinned(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto block = held_.upper_bound(data);
  if (block == held_.begin()) return false;
  --block;
  const int64_t offset = static_cast<const char*>(data) - static_cast<const char*>(block->first);
  return offset < block->second.bytes && block->second.kind == sim::cuda::MemoryKind::kPinned;
}

bool ShimMemory::AllWhole() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [data, block] : held_) broken_ = broken_ || !Whole(data, block.bytes);
  return !broken_;
}

}  // namespace simgrad::tests
