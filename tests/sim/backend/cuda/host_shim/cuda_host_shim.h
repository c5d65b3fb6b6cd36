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
  // Returns when every thread of the block has come to the same place; the or of what they bring.
  int (*barrier)(const char* file, int line, int value);
};
extern SIMGRAD_SHIM_EXPORT SimgradShim simgrad_shim;
}

// The one block of dynamic shared memory.
extern unsigned char simgrad_shared[];

#define threadIdx (simgrad_shim.thread)
#define blockIdx (simgrad_shim.block)
#define blockDim (simgrad_shim.block_size)
#define gridDim (simgrad_shim.grid_size)
#define __syncthreads() static_cast<void>(simgrad_shim.barrier(__FILE__, __LINE__, 0))
#define __syncthreads_or(value) simgrad_shim.barrier(__FILE__, __LINE__, (value) != 0)

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
