// tf32: f32 with 11 bits of precision, as which matmul may read its operands.
//
// Maths: x, a value of f32, rounded to a multiple of 2^max(e - 10, -136), 2^e <= |x| < 2^(e+1). The low
//   13 bits of the encoding go; a carry out of the significand moves into the exponent.
// Accuracy: correctly rounded. To nearest, magnitudes from 2^128 - 2^116 on become Inf; toward zero
//   nothing overflows. NaN becomes the canonical NaN; zeros keep their sign.
// Errors: none; stochastic rounding is not defined. Cost: 3 to 6 integer operations without a branch.
// Threads: pure; host and device; no rounding mode matters. Source: docs/numerics.md section 1.
#pragma once

#include "precision/format.h"
#include "precision/host_device.h"

namespace simgrad::precision {

template <CastRounding kRounding>
SIMGRAD_HD constexpr float RoundToTf32(float x) {
  static_assert(kRounding != CastRounding::kStochastic);
  constexpr uint32_t kTail = (1u << 13) - 1;
  const uint32_t bits = BitsOf(x);
  uint32_t up = 0;
  if (kRounding == CastRounding::kNearestEven) up = (kTail >> 1) + ((bits >> 13) & 1u);
  if (kRounding == CastRounding::kNearestAway) up = (kTail >> 1) + 1u;
  return FloatOf(x != x ? kFloatNanBits : (bits + up) & ~kTail);
}

SIMGRAD_HD constexpr float RoundToTf32(float x, CastRounding rounding) {
  if (rounding == CastRounding::kTowardZero) return RoundToTf32<CastRounding::kTowardZero>(x);
  if (rounding == CastRounding::kNearestAway) return RoundToTf32<CastRounding::kNearestAway>(x);
  return RoundToTf32<CastRounding::kNearestEven>(x);
}

}  // namespace simgrad::precision
