// Tan in f64, and the same rounded to odd for narrower formats.
//
// Maths: x = quadrant pi/2 + r; tan x is sin r / cos r, or -cos r / sin r in odd quadrants, with the
//   sine and the cosine of precision/elementary_trig.h as DoubleDoubles.
// Accuracy: before the last rounding a relative error below 2^-63, for every finite argument. Inf
//   and NaN give the canonical NaN.
// Cost: two sines and a division; from 2^20 on one branch. Threads: pure.
#pragma once

#include "precision/elementary_trig.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

SIMGRAD_FLAT constexpr DoubleDouble Normalised(DoubleDouble x) { return FastTwoSum(x.hi, x.lo); }

template <bool kToOdd>
SIMGRAD_FLAT inline double TanAs(double x) {
  const double magnitude = Magnitude(x);
  const bool is_finite = magnitude < Infinity();
  const QuarterTurns reduced = ReduceQuarterTurns(Select(is_finite, magnitude, 0.0));
  const uint64_t rest_sign = BitsOf(reduced.rest.hi) & kSignBit;
  const TurnOfRest turn = SplitTurn(reduced.rest);
  const DoubleDouble sin = Normalised(SinOfTurn(turn, false));
  const DoubleDouble cos = Normalised(SinOfTurn(turn, true));
  const bool is_odd = (reduced.quadrant & 1) != 0;
  const DoubleDouble numerator = {Select(is_odd, cos.hi, sin.hi), Select(is_odd, cos.lo, sin.lo)};
  const DoubleDouble denominator = {Select(is_odd, sin.hi, cos.hi), Select(is_odd, sin.lo, cos.lo)};
  const uint64_t sign = rest_sign ^ (is_odd ? kSignBit : 0) ^ (BitsOf(x) & kSignBit);
  const double tan = FlipSign(Joined<kToOdd>(Quotient(numerator, denominator)), sign);
  // Below 2^-30 tan x is x to within 2^-61 of it.
  const double or_x = Select(magnitude < 0x1p-30, x, tan);
  return Select(is_finite, or_x, QuietNan());
}

}  // namespace internal

// tan(x), x in radians. Tan(-0) is -0. Measured: at most 0.50002 ulp.
SIMGRAD_FLAT inline double Tan(double x) { return internal::TanAs<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Tan(double x) { return internal::TanAs<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
