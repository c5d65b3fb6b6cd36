// How a kernel reads what was sent.
//
// Units: an input is row-major [instance][step][shape]; a stride of 0 repeats (kernel_abi.h).
// Errors: none. Threads: pure.
#pragma once

#include "precision/selection.h"
#include "sim/backend/cuda/device/integers.h"
#include "sim/backend/cuda/kernel_abi.h"

namespace simgrad::sim::cuda::device {

SIMGRAD_HD inline int64_t PlaceIn(const InputView& view, int64_t instance, int64_t t,
                                  int64_t element) {
  return instance * view.instance_stride + t * view.step_stride + element;
}

// A real number, exact.
SIMGRAD_HD inline double ReadReal(const InputView& view, int64_t instance, int64_t t,
                                  int64_t element) {
  const int64_t place = PlaceIn(view, instance, t, element);
  return view.memory_type == MemoryType::kF32
             ? static_cast<double>(static_cast<const float*>(view.data)[place])
             : static_cast<const double*>(view.data)[place];
}

template <class T>
SIMGRAD_HD inline T ReadInteger(const InputView& view, int64_t instance, int64_t t,
                                int64_t element) {
  return WrapTo<T>(static_cast<const int64_t*>(view.data)[PlaceIn(view, instance, t, element)]);
}

// A cotangent that was sent, scaled; 0 where none was.
template <Format F>
SIMGRAD_HD inline typename Lane<F>::Carrier ReadCotangent(const double* sent, int64_t place,
                                                          double seed) {
  return sent == nullptr ? 0 : Lane<F>::Round(sent[place] * seed);
}

}  // namespace simgrad::sim::cuda::device
