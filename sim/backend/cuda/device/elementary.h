// The elementary functions, each once per kernel text instead of once per use.
//
// Maths: precision/elementary.h for f64, precision/narrow_elementary.h for the other formats, to the
//   bit. The functions are long. As calls, not inlined, they keep the time short that a text with
//   many of them takes to compile.
// Errors: none. Threads: pure.
#pragma once

#include "precision/arithmetic.h"
#include "precision/narrow_elementary.h"

namespace simgrad::sim::cuda::device {

using precision::Format;

// Name<F>(x): what rounds to the result in format F.
#define SIMGRAD_DEVICE_FUNCTION(Name)                                                       \
  __device__ __noinline__ inline double Wide##Name(double x) { return precision::Name(x); } \
  __device__ __noinline__ inline double Narrow##Name(double x) {                            \
    return precision::narrow::Name(x);                                                      \
  }                                                                                         \
  template <Format F>                                                                       \
  __device__ double Name(double x) {                                                        \
    if constexpr (F == Format::kF64) {                                                      \
      return Wide##Name(x);                                                                 \
    } else {                                                                                \
      return Narrow##Name(x);                                                               \
    }                                                                                       \
  }

SIMGRAD_DEVICE_FUNCTION(Exp)
SIMGRAD_DEVICE_FUNCTION(Log)
SIMGRAD_DEVICE_FUNCTION(Log1p)
SIMGRAD_DEVICE_FUNCTION(Expm1)
SIMGRAD_DEVICE_FUNCTION(Sin)
SIMGRAD_DEVICE_FUNCTION(Cos)
SIMGRAD_DEVICE_FUNCTION(Tanh)
SIMGRAD_DEVICE_FUNCTION(Sigmoid)
SIMGRAD_DEVICE_FUNCTION(Softplus)
#undef SIMGRAD_DEVICE_FUNCTION

template <Format F>
__device__ __noinline__ double Atan2(double y, double x) {
  if constexpr (F == Format::kBf16) {
    return precision::narrow::Atan2OfBf16(y, x);
  } else {
    return precision::Atan2(y, x);
  }
}

__device__ __noinline__ inline double Pow(double x, double y) { return precision::Pow(x, y); }

// The floored remainder in format F (precision/arithmetic.h).
template <Format F>
__device__ __noinline__ double Mod(double a, double b) {
  return precision::Mod(F, a, b);
}

}  // namespace simgrad::sim::cuda::device
