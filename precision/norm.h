// The Euclidean norm without overflow on the way: numbers are scaled by a power of two before they are squared.
//
// Maths: scale 2^-e with 2^e <= max |x| < 2^(e+1); the norm is 2^e sqrt(sum (2^-e x)^2). Scaling is exact but for
//   what it makes subnormal.
// Accuracy: scaled numbers, squares and the result are rounded once each. A largest magnitude of 0, Inf or NaN is
//   the norm.
// Errors: none. Threads: pure; host and device.
// Source: docs/numerics.md section 3.
#pragma once

#include "precision/host_device.h"
#include "precision/selection.h"

namespace simgrad::precision {

SIMGRAD_HD inline int ExponentOf(double x) {
  const uint64_t bits = BitsOf(x) & 0x7FFFFFFFFFFFFFFFu;
  const int biased = static_cast<int>(bits >> 52);
  // A subnormal times 2^54 is normal.
  const int of_subnormal =
      static_cast<int>((BitsOf(x * 0x1p54) & 0x7FFFFFFFFFFFFFFFu) >> 52) - 54 - 1023;
  return biased != 0 ? biased - 1023 : of_subnormal;
}

// x 2^e or x 2^-e, for 2^e the binade of `largest`; 0, Inf and NaN have none.
SIMGRAD_HD inline double ScaleUp(double x, double largest) {
  const int e = (IsFinite(largest) & (largest != 0.0)) ? ExponentOf(largest) : 0;
  const int half = e / 2;
  return x * DoublePowerOfTwo(half) * DoublePowerOfTwo(e - half);
}
SIMGRAD_HD inline double ScaleDown(double x, double largest) {
  const int e = (IsFinite(largest) & (largest != 0.0)) ? -ExponentOf(largest) : 0;
  const int half = e / 2;
  return x * DoublePowerOfTwo(half) * DoublePowerOfTwo(e - half);
}

}  // namespace simgrad::precision
