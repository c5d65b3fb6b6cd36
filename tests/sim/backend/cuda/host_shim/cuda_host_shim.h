// What a generated kernel needs of CUDA, for the host compiler: marks, indices, barriers, atomics.
//
// Included before the text. The threads of a block are fibers of one host thread, switched at
// barriers alone, so atomics are plain; the host fills simgrad_shim before it resumes one.
// Threads: one host thread per loaded text at a time.
#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>

#define SIMGRAD_SHIM_EXPORT __attribute__((visibility("default")))
#define __global__ SIMGRAD_SHIM_EXPORT
#define __device__
#define __host__
#define __constant__ const
#define __shared__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

struct SimgradShimIndex {
  unsigned x, y, z;
};

extern "C" {
struct SimgradShim {
  SimgradShimIndex thread, block, block_size, grid_size;
  // Returns when every thread of the block (operation 0), or of the warp, has come to the same
  // place; the or of what they bring, or its sum (1), smallest (2), largest (3), or (4).
  unsigned (*await)(const char* file, int line, int operation, unsigned value);
};
extern SIMGRAD_SHIM_EXPORT SimgradShim simgrad_shim;
}

// The one block of dynamic shared memory.
extern unsigned char simgrad_shared[];

#define threadIdx (simgrad_shim.thread)
#define blockIdx (simgrad_shim.block)
#define blockDim (simgrad_shim.block_size)
#define gridDim (simgrad_shim.grid_size)
#define __syncthreads() static_cast<void>(simgrad_shim.await(__FILE__, __LINE__, 0, 0))
#define __syncthreads_or(value) \
  static_cast<int>(simgrad_shim.await(__FILE__, __LINE__, 0, (value) != 0 ? 1u : 0u))
#define __threadfence_block() static_cast<void>(0)
// The mask has to name all threads of the warp, as it does where they come converged.
#define SIMGRAD_SHIM_WARP(mask, operation, value) \
  (static_cast<void>(mask), simgrad_shim.await(__FILE__, __LINE__, operation, value))
#define __reduce_add_sync(mask, value) SIMGRAD_SHIM_WARP(mask, 1, value)
#define __reduce_min_sync(mask, value) SIMGRAD_SHIM_WARP(mask, 2, value)
#define __reduce_max_sync(mask, value) SIMGRAD_SHIM_WARP(mask, 3, value)
#define __reduce_or_sync(mask, value) SIMGRAD_SHIM_WARP(mask, 4, value)
#define __any_sync(mask, value) SIMGRAD_SHIM_WARP(mask, 4, (value) ? 1u : 0u)

template <class T>
inline T SimgradExchange(T* at, T value) {
  const T before = *at;
  *at = value;
  return before;
}

#define SIMGRAD_SHIM_ATOMICS(T)                                                                   \
  inline T atomicAdd(T* at, T value) { return SimgradExchange(at, static_cast<T>(*at + value)); } \
  inline T atomicMin(T* at, T value) { return SimgradExchange(at, value < *at ? value : *at); }   \
  inline T atomicMax(T* at, T value) { return SimgradExchange(at, value > *at ? value : *at); }   \
  inline T atomicOr(T* at, T value) { return SimgradExchange(at, static_cast<T>(*at | value)); }  \
  inline T atomicExch(T* at, T value) { return SimgradExchange(at, value); }                      \
  inline T atomicCAS(T* at, T expected, T value) {                                                \
    return SimgradExchange(at, *at == expected ? value : *at);                                    \
  }
SIMGRAD_SHIM_ATOMICS(int)
SIMGRAD_SHIM_ATOMICS(unsigned)
SIMGRAD_SHIM_ATOMICS(unsigned long long)
#undef SIMGRAD_SHIM_ATOMICS
