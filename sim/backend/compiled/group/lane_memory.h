// Memory for numbers in lanes. It begins where a cache line does, so that no vector lies in two.
//
// Errors: std::bad_alloc. Threads: data.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace simgrad::sim::compiled {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT: as allocators are converted
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* at, size_t) { ::operator delete(at, kLine); }
  template <class U>
  bool operator==(const LineAllocator<U>&) const {
    return true;
  }
};

using LaneMemory = std::vector<std::byte, LineAllocator<std::byte>>;

}  // namespace simgrad::sim::compiled
