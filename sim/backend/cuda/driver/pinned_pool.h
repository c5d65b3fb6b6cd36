// Free pinned memory, kept for the next request: pinning takes longer than a small request runs.
//
// Errors: none. Cost: logarithmic in the pieces. Threads: one at a time; the owner has a lock.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

namespace simgrad::sim::cuda {

class PinnedPool {
 public:
  // `most_bytes` bounds what is kept in all.
  explicit PinnedPool(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // The size to allocate for `bytes` >= 0: less than an eighth or a page more, at least a page. There are eight
  // sizes from a power of two to the next, so that pieces fit again.
  static int64_t SizeFor(int64_t bytes) {
    constexpr uint64_t kPage = 4096;
    const uint64_t least = bytes <= 0 ? 1 : static_cast<uint64_t>(bytes);
    const uint64_t step = std::max(kPage, std::bit_floor(least) / 8);
    return static_cast<int64_t>((least + step - 1) / step * step);
  }
  // A piece of that size that was kept, or null.
  void* Take(int64_t size) {
    const auto found = idle_.find(size);
    if (found == idle_.end()) return nullptr;
    void* const data = found->second;
    idle_.erase(found);
    idle_bytes_ -= size;
    return data;
  }
  // Whether it is kept; else the caller frees it.
  bool Keep(void* data, int64_t size) {
    if (idle_bytes_ + size > most_bytes_) return false;
    idle_.emplace(size, data);
    idle_bytes_ += size;
    return true;
  }
  // Calls free(data) for all that is kept.
  template <class Free>
  void Clear(const Free& free) {
    for (const auto& [size, data] : idle_) free(data);
    idle_.clear();
    idle_bytes_ = 0;
  }

 private:
  int64_t most_bytes_;
  int64_t idle_bytes_ = 0;
  std::multimap<int64_t, void*> idle_;
};

}  // namespace simgrad::sim::cuda
