// Numbers as an 8-bit format keeps them under a scale: divided by it, rounded, multiplied by it.
//
// Maths: 2^k is the smallest power of two with amax <= max_finite 2^k. A number x becomes q 2^k, q the
//   value of the format nearest to x 2^-k, ties to even; beyond the range q is the largest value.
// Accuracy: one rounding. q 2^k is a value of every format that x is a value of, unless it lies above
//   the largest one. NaN stays NaN. An amax of 0, NaN or Inf gives k = 0.
// Errors: none. Threads: pure; host and device; needs the float environment of
//   precision/float_environment.h. Cost: no branch.
// Source: docs/numerics.md section 11.
#pragma once

#include "precision/lane_rounding.h"
#include "precision/norm.h"

namespace simgrad::precision {

// x 2^exponent, for |exponent| up to 2044. Exact but for what overflows or becomes subnormal.
SIMGRAD_HD inline double TimesPowerOfTwo(double x, int exponent) {
  const int half = exponent / 2;
  return x * DoublePowerOfTwo(half) * DoublePowerOfTwo(exponent - half);
}

// k. Significands decide, so that it is right to the last bit of amax.
template <Format F>
SIMGRAD_HD inline int ScaleExponent(double amax) {
  const double most = Traits(F).max_finite;
  const int top = ExponentOf(most);
  const int own = ExponentOf(amax);
  const bool is_above = TimesPowerOfTwo(amax, -own) > TimesPowerOfTwo(most, -top);
  return (IsFinite(amax) & (amax > 0.0)) ? own - top + (is_above ? 1 : 0) : 0;
}

// q 2^k. F: e4m3, e5m2.
template <Format F>
SIMGRAD_HD inline double Quantized(double x, double amax) {
  const int k = ScaleExponent<F>(amax);
  return TimesPowerOfTwo(RoundDouble<F>(TimesPowerOfTwo(x, -k), Overflow::kSaturate), k);
}

#ifndef __CUDACC_RTC__
inline double Quantized(Format format, double x, double amax) {
  return format == Format::kE5m2 ? Quantized<Format::kE5m2>(x, amax)
                                 : Quantized<Format::kE4m3>(x, amax);
}
#endif

}  // namespace simgrad::precision
