// Sin and Cos in f64.
//
// Maths: |x| = quadrant pi/2 + r; |r| = a + d with a = j/64, |d| <= 2^-7; sin(a + d) = sin a +
// cos a sin d + sin a (cos d - 1), with tabulated sin a and cos a and Taylor polynomials in d of
// degree 9 and 6. cos(a + d) is the same with (cos a, -sin a) for (sin a, cos a).
// Accuracy: with each function, for every finite argument. Inf and NaN give the canonical NaN.
// Cost: about 85 floating-point operations and four table reads below 2^20; above, one branch.
// Threads: pure.
#pragma once

#include "precision/joined.h"
#include "precision/payne_hanek.h"

namespace simgrad::precision {
namespace internal {

// r = |rest| in parts: a = j/64, d = d_high + d_low, and what the Taylor polynomials add.
struct TurnOfRest {
  int64_t j;
  double d;
  double d_low;
  double sin_tail;
  double cos_tail;
};

SIMGRAD_FLAT inline TurnOfRest SplitTurn(DoubleDouble rest) {
  const uint64_t rest_sign = BitsOf(rest.hi) & kSignBit;
  const double r = Magnitude(rest.hi);
  const double shifted = r * 64.0 + kRoundingShifter;
  const double d = r - (shifted - kRoundingShifter) * 0x1p-6;  // exact
  const double square = d * d;
  // sin d - d = -d^3/3! + d^5/5! - d^7/7! + d^9/9!;  cos d - 1 = -d^2/2! + d^4/4! - d^6/6!
  const double sin_tail =
      d * square *
      (-0x1.5555555555555p-3 +
       square * (0x1.1111111111111p-7 +
                 square * (-0x1.a01a01a01a01ap-13 + square * 0x1.71de3a556c734p-19)));
  const double cos_tail =
      square * (-0x1p-1 + square * (0x1.5555555555555p-5 + square * -0x1.6c16c16c16c17p-10));
  return {IntegerOfShifted(shifted) & 63, d, FlipSign(rest.lo, rest_sign), sin_tail, cos_tail};
}

// sin r or cos r as two doubles whose sum has a relative error below 2^-65; the first may have 26 bits.
SIMGRAD_FLAT inline DoubleDouble SinOfTurn(const TurnOfRest& turn, bool is_cosine) {
  const int64_t j = turn.j;
  const double d = turn.d;
  const double base_high = Select(is_cosine, CosTableHigh(j), SinTableHigh(j));
  const double base_low = Select(is_cosine, CosTableLow(j), SinTableLow(j));
  const double slope_high = Select(is_cosine, -SinTableHigh(j), CosTableHigh(j));
  const double slope_low = Select(is_cosine, -SinTableLow(j), CosTableLow(j));
  const double d_top = TopBits(d);
  const DoubleDouble sum = FastTwoSum(base_high, slope_high * d_top);  // exact: 26 bits times 26
  const double low = slope_high * ((d - d_top) + turn.d_low) + (slope_low * d + base_low) +
                     ((base_high + base_low) * (turn.cos_tail - d * turn.d_low) +
                      (slope_high + slope_low) * turn.sin_tail);
  return {sum.hi, sum.lo + low};
}

// sin(|x| + turns pi/2), times -1 where sign_bit is set; rounded to odd for a second rounding.
template <bool kToOdd = false>
SIMGRAD_FLAT inline double SinOfQuarterTurns(double x, int64_t turns, uint64_t sign_bit) {
  const double magnitude = Magnitude(x);
  const bool is_finite = magnitude < Infinity();
  const QuarterTurns reduced = ReduceQuarterTurns(Select(is_finite, magnitude, 0.0));
  const int64_t quadrant = reduced.quadrant + turns;
  const uint64_t rest_sign = BitsOf(reduced.rest.hi) & kSignBit;
  const bool is_cosine = (quadrant & 1) != 0;
  const double value = Joined<kToOdd>(SinOfTurn(SplitTurn(reduced.rest), is_cosine));
  // sin is odd in r, cos is even; two quarter turns flip the sign of both.
  const uint64_t turn_sign = static_cast<uint64_t>(quadrant & 2) << 62;
  const double result = FlipSign(value, turn_sign ^ sign_bit ^ (is_cosine ? 0 : rest_sign));
  return Select(is_finite, result, QuietNan());
}

}  // namespace internal

// sin(x), x in radians. Sin(-0) is -0. Measured: at most 0.50005 ulp.
SIMGRAD_FLAT inline double Sin(double x) {
  return internal::SinOfQuarterTurns(x, 0, BitsOf(x) & internal::kSignBit);
}

// cos(x), x in radians. Measured: at most 0.50007 ulp.
SIMGRAD_FLAT inline double Cos(double x) { return internal::SinOfQuarterTurns(x, 1, 0); }

}  // namespace simgrad::precision
