// Sums and extremes over the threads of a warp, each answered to all of them.
//
// How: one instruction on compute capability 8.0 and later, shuffles before. That all threads take
//   part is a constant of the text: a mask computed from the size of the block costs a call each.
// Errors: none. Threads: all of the warp, converged; a block on a GPU is of whole warps.
#pragma once

#include "precision/host_device.h"

namespace simgrad::sim::cuda::device {

inline constexpr unsigned kWholeWarp = ~0u;

// The threads of this warp. Where tests stand in for a GPU, the last of a block may have fewer.
__device__ inline unsigned WarpThreads() {
#ifdef __CUDA_ARCH__
  return 32;
#else
  const unsigned from_here = blockDim.x - (threadIdx.x & ~31u);
  return from_here < 32 ? from_here : 32;
#endif
}

// Whether this thread speaks for its warp.
__device__ inline bool IsFirstOfWarp() { return (threadIdx.x & 31u) == 0; }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800

template <class Operation>
__device__ inline uint32_t OverLanes(uint32_t x, const Operation& operation) {
  uint32_t joined = __shfl_sync(kWholeWarp, x, 0);
  for (int lane = 1; lane < 32; ++lane) {
    joined = operation(joined, __shfl_sync(kWholeWarp, x, lane));
  }
  return joined;
}
__device__ inline uint32_t WarpSum(uint32_t x) {
  return OverLanes(x, [](uint32_t a, uint32_t b) { return a + b; });
}
__device__ inline uint32_t WarpLeast(uint32_t x) {
  return OverLanes(x, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
__device__ inline uint32_t WarpMost(uint32_t x) {
  return OverLanes(x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
__device__ inline uint32_t WarpUnion(uint32_t x) {
  return OverLanes(x, [](uint32_t a, uint32_t b) { return a | b; });
}

#else

__device__ inline uint32_t WarpSum(uint32_t x) { return __reduce_add_sync(kWholeWarp, x); }
__device__ inline uint32_t WarpLeast(uint32_t x) { return __reduce_min_sync(kWholeWarp, x); }
__device__ inline uint32_t WarpMost(uint32_t x) { return __reduce_max_sync(kWholeWarp, x); }
__device__ inline uint32_t WarpUnion(uint32_t x) { return __reduce_or_sync(kWholeWarp, x); }

#endif

__device__ inline bool WarpAny(bool x) { return __any_sync(kWholeWarp, x) != 0; }

// Counts below it are summed in 32 bits.
inline constexpr unsigned long long kLargeCount = 1ull << 27;

// `large`, the same in all threads: a count may reach kLargeCount; none 2^54.
__device__ inline unsigned long long WarpSum(unsigned long long x, bool large) {
  const unsigned long long low = WarpSum(static_cast<uint32_t>(x & (kLargeCount - 1)));
  if (!large) return low;
  return low + (static_cast<unsigned long long>(WarpSum(static_cast<uint32_t>(x >> 27))) << 27);
}

__device__ inline unsigned long long WarpLeast(unsigned long long x) {
  const uint32_t high = static_cast<uint32_t>(x >> 32);
  const uint32_t least = WarpLeast(high);
  const uint32_t low = WarpLeast(high == least ? static_cast<uint32_t>(x) : ~0u);
  return (static_cast<unsigned long long>(least) << 32) | low;
}
__device__ inline unsigned long long WarpMost(unsigned long long x) { return ~WarpLeast(~x); }

}  // namespace simgrad::sim::cuda::device
