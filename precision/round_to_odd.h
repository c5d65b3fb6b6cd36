// The sum of two numbers rounded to odd in the carrier, so that a second rounding is harmless.
//
// Maths: two-sum (Knuth) gives s + e = a + b exactly; where e != 0 and the last bit of s is even, s
//   moves one ulp towards e. A value rounded to odd with at least p + 2 bits rounds to p bits as
//   the exact value does, in every rounding and for subnormals too.
// Accuracy: exact, but for a sum that overflows the carrier, which stays infinite.
// Errors: none; NaN and Inf as a + b gives them. Threads: pure; host and device; needs round to
//   nearest in the caller's thread. Cost: 6 additions, no branch.
// Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
//   using rounding to odd", IEEE Transactions on Computers 57(4), 2008.
#pragma once

#include "precision/host_device.h"

namespace simgrad::precision {

SIMGRAD_HD inline double AddToOdd(double a, double b) {
  const double s = a + b;
  const double b_part = s - a;
  const double e = (a - (s - b_part)) + (b - b_part);
  const uint64_t bits = BitsOf(s);
  // Towards e: up in magnitude where the signs agree, else down; none for e = 0 or NaN.
  const uint64_t step = ((bits ^ BitsOf(e)) >> 63) != 0 ? ~uint64_t{0} : uint64_t{1};
  const bool inexact = (e > 0.0) | (e < 0.0);
  const uint64_t moved = (bits & 1) != 0 ? bits : bits + step;
  return DoubleOf(inexact ? moved : bits);
}

SIMGRAD_HD inline float AddToOdd(float a, float b) {
  const float s = a + b;
  const float b_part = s - a;
  const float e = (a - (s - b_part)) + (b - b_part);
  const uint32_t bits = BitsOf(s);
  const uint32_t step = ((bits ^ BitsOf(e)) >> 31) != 0 ? ~uint32_t{0} : uint32_t{1};
  const bool inexact = (e > 0.0f) | (e < 0.0f);
  const uint32_t moved = (bits & 1) != 0 ? bits : bits + step;
  return FloatOf(inexact ? moved : bits);
}

}  // namespace simgrad::precision
