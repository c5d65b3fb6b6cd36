// Sums and extremes over the threads of a warp, each answered to all of them.
//
// How: one instruction on compute capability 8.0 and later, shuffles before.
// Errors: none. Threads: all of the warp, converged; a block's last warp may be smaller than 32.
#pragma once

#include "precision/host_device.h"

namespace simgrad::sim::cuda::device {

struct Warp {
  unsigned mask;  // its threads
  bool first;     // this thread speaks for it
};

__device__ inline Warp ThisWarp() {
  const unsigned threads = blockDim.x - (threadIdx.x & ~31u);
  return {threads >= 32 ? ~0u : (1u << threads) - 1, (threadIdx.x & 31u) == 0};
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800

template <class Operation>
__device__ inline uint32_t OverLanes(const Warp& warp, uint32_t x, const Operation& operation) {
  uint32_t joined = __shfl_sync(warp.mask, x, 0);
  for (int lane = 1; lane < 32 && (warp.mask >> lane) != 0; ++lane) {
    joined = operation(joined, __shfl_sync(warp.mask, x, lane));
  }
  return joined;
}
__device__ inline uint32_t Sum(const Warp& warp, uint32_t x) {
  return OverLanes(warp, x, [](uint32_t a, uint32_t b) { return a + b; });
}
__device__ inline uint32_t Least(const Warp& warp, uint32_t x) {
  return OverLanes(warp, x, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
__device__ inline uint32_t Most(const Warp& warp, uint32_t x) {
  return OverLanes(warp, x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
__device__ inline uint32_t Union(const Warp& warp, uint32_t x) {
  return OverLanes(warp, x, [](uint32_t a, uint32_t b) { return a | b; });
}

#else

__device__ inline uint32_t Sum(const Warp& warp, uint32_t x) {
  return __reduce_add_sync(warp.mask, x);
}
__device__ inline uint32_t Least(const Warp& warp, uint32_t x) {
  return __reduce_min_sync(warp.mask, x);
}
__device__ inline uint32_t Most(const Warp& warp, uint32_t x) {
  return __reduce_max_sync(warp.mask, x);
}
__device__ inline uint32_t Union(const Warp& warp, uint32_t x) {
  return __reduce_or_sync(warp.mask, x);
}

#endif

// Counts below it are summed in 32 bits.
inline constexpr unsigned long long kLargeCount = 1ull << 27;

// `large`, the same in all threads: a count may reach kLargeCount; none 2^54.
__device__ inline unsigned long long Sum(const Warp& warp, unsigned long long x, bool large) {
  const unsigned long long low = Sum(warp, static_cast<uint32_t>(x & (kLargeCount - 1)));
  if (!large) return low;
  return low + (static_cast<unsigned long long>(Sum(warp, static_cast<uint32_t>(x >> 27))) << 27);
}

__device__ inline unsigned long long Least(const Warp& warp, unsigned long long x) {
  const uint32_t high = static_cast<uint32_t>(x >> 32);
  const uint32_t least = Least(warp, high);
  const uint32_t low = Least(warp, high == least ? static_cast<uint32_t>(x) : ~0u);
  return (static_cast<unsigned long long>(least) << 32) | low;
}
__device__ inline unsigned long long Most(const Warp& warp, unsigned long long x) {
  return ~Least(warp, ~x);
}

}  // namespace simgrad::sim::cuda::device
