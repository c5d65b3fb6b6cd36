// Memory for rows of lanes: it begins with a cache line, so that no vector lies across two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace simgrad::sim::cpu {

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

using RowBytes = std::vector<std::byte, CacheLineAllocator<std::byte>>;
using RowMask = std::vector<int32_t, CacheLineAllocator<int32_t>>;

}  // namespace simgrad::sim::cpu
