// Places in a block's workspace that are given out and taken back while a plan is compiled.
//
// Places are counted in bytes per lane, so that one plan serves every block width.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace simgrad::sim::cpu {

class SlotPool {
 public:
  // A place of `bytes`; one that was given back, if there is one of that size.
  int64_t Take(int64_t bytes) {
    std::vector<int64_t>& free = free_[bytes];
    if (!free.empty()) {
      const int64_t offset = free.back();
      free.pop_back();
      return offset;
    }
    return TakeFresh(bytes);
  }
  // A place that was never used.
  int64_t TakeFresh(int64_t bytes) {
    const int64_t offset = size_;
    size_ += bytes;
    return offset;
  }
  void Return(int64_t offset, int64_t bytes) { free_[bytes].push_back(offset); }
  int64_t size() const { return size_; }

 private:
  std::map<int64_t, std::vector<int64_t>> free_;
  int64_t size_ = 0;
};

}  // namespace simgrad::sim::cpu
