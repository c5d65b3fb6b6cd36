// The exact sum of an array by the threads of a block.
//
// Maths: precision/exact_sum.h. Errors: none. Threads: called by all threads of a block alike.
#pragma once

#include "precision/exact_sum.h"
#include "precision/lane.h"

namespace simgrad::sim::cuda::device {

using precision::Format;
using precision::Lane;

// The exact sum is the same in every order. `total` is one for the block, `result` too.
template <Format kTo, int kCount, class At>
__device__ inline typename Lane<kTo>::Carrier BlockExactSum(const At& at,
                                                            precision::ExactSum* total,
                                                            double* result) {
  if (threadIdx.x == 0) *total = precision::ExactSum();
  __syncthreads();
  if (threadIdx.x < kCount) {
    precision::ExactSum mine;
    for (int i = threadIdx.x; i < kCount; i += blockDim.x) mine.Add(static_cast<double>(at(i)));
    total->Join(mine, [](int64_t& limb, int64_t x) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&limb), static_cast<unsigned long long>(x));
    });
  }
  __syncthreads();
  if (threadIdx.x == 0) *result = total->Result(kTo);
  __syncthreads();
  return static_cast<typename Lane<kTo>::Carrier>(*result);
}

}  // namespace simgrad::sim::cuda::device
