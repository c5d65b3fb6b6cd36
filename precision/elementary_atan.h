// Atan2 and Atan in f64; Atan for narrower formats too.
//
// Maths: n <= d are |y|, |x| in order; t = j/64 next to n/d; atan(n/d) = atan t + atan r,
// r = (n - t d)/(d + t n), |r| <= 2^-7, with tabulated atan t and the Taylor polynomial of
// degree 9. Then the octant: pi/2 - . where |y| > |x|, pi - . where x < 0, and the sign of y.
// Accuracy: with the function. NaN gives the canonical NaN.
// Cost: about 80 floating-point operations, three of them divisions, two table reads, no branches.
// Threads: pure.
#pragma once

#include "precision/double_double.h"
#include "precision/elementary_tables.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

// r - atan r = r^3/3 - r^5/5 + r^7/7 - r^9/9
SIMGRAD_FLAT constexpr double AtanTail(double r) {
  const double square = r * r;
  return r * square *
         (0x1.5555555555555p-2 +
          square * (-0x1.999999999999ap-3 +
                    square * (0x1.2492492492492p-3 + square * -0x1.c71c71c71c71cp-4)));
}

// atan(n/d) for 0 <= n <= d, d > 0 finite, and ratio = n/d rounded. Relative error below 2^-62
// where ratio >= 2^-60; below that only the absolute error is small.
SIMGRAD_FLAT inline DoubleDouble AtanOfRatio(double n, double d, double ratio) {
  // Keep products of halves away from overflow and underflow.
  const double scale = Select(d > 0x1p+500, 0x1p-600, Select(d < 0x1p-500, 0x1p+600, 1.0));
  const double n_scaled = n * scale;
  const double d_scaled = d * scale;
  const double shifted = ratio * 64.0 + kRoundingShifter;
  const int64_t j = IntegerOfShifted(shifted) & 127;
  const double t = (shifted - kRoundingShifter) * 0x1p-6;

  // t has 7 bits, so its products with the halves of d are exact, and so is the first difference.
  const double d_top = TopBits(d_scaled);
  const DoubleDouble numerator = TwoSum(n_scaled - t * d_top, -(t * (d_scaled - d_top)));
  const DoubleDouble r = Quotient(numerator, FastTwoSum(d_scaled, t * n_scaled));
  const double tail = AtanTail(r.hi);
  const DoubleDouble sum = FastTwoSum(AtanTableHigh(j), r.hi);
  return FastTwoSum(sum.hi, sum.lo + (AtanTableLow(j) + (r.lo - tail)));
}

// atan(n/d) for DoubleDoubles 0 <= n <= d (1 + 2^-40), d in [2^-400, 2^400]. Relative error below
// 2^-62 where n/d >= 2^-60.
SIMGRAD_FLAT inline DoubleDouble AtanOfQuotient(DoubleDouble n, DoubleDouble d) {
  const double shifted = (n.hi / d.hi) * 64.0 + kRoundingShifter;
  const int64_t j = IntegerOfShifted(shifted) & 127;
  const double t = (shifted - kRoundingShifter) * 0x1p-6;
  // As in AtanOfRatio; here the low halves and the rest of t n count too.
  const double d_top = TopBits(d.hi);
  const double n_top = TopBits(n.hi);
  const DoubleDouble numerator = TwoSum(n.hi - t * d_top, -(t * (d.hi - d_top)));
  const DoubleDouble tn = FastTwoSum(t * n_top, t * (n.hi - n_top));
  const DoubleDouble denominator = FastTwoSum(d.hi, tn.hi);
  const DoubleDouble r = Quotient({numerator.hi, numerator.lo + (n.lo - t * d.lo)},
                                  {denominator.hi, denominator.lo + (tn.lo + d.lo + t * n.lo)});
  const DoubleDouble sum = FastTwoSum(AtanTableHigh(j), r.hi);
  return FastTwoSum(sum.hi, sum.lo + (AtanTableLow(j) + (r.lo - AtanTail(r.hi))));
}

// Atan2, rounded to odd for a second rounding where kToOdd.
template <bool kToOdd>
SIMGRAD_FLAT inline double AngleAs(double y, double x) {
  constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;  // pi/2 to 107 bits
  constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
  const double y_magnitude = Magnitude(y);
  const double x_magnitude = Magnitude(x);
  const bool is_steep = y_magnitude > x_magnitude;
  const bool is_left = (BitsOf(x) & kSignBit) != 0;
  const double larger = Select(is_steep, y_magnitude, x_magnitude);
  const double smaller = Select(is_steep, x_magnitude, y_magnitude);
  const bool is_number = (x == x) & (y == y);
  // Infinite: the ratio is 1 where both are, else 0. Both zero, or a NaN: 0.
  const double infinity = Infinity();
  const bool is_regular = is_number & (larger < infinity) & (larger > 0.0);
  const double d = Select(is_regular, larger, 1.0);
  const double n = Select(is_regular, smaller, Select(smaller == infinity, 1.0, 0.0));
  const double ratio = n / d;
  const DoubleDouble atan = AtanOfRatio(n, d, ratio);

  const double base_turns = Select(is_steep, 1.0, Select(is_left, 2.0, 0.0));
  const uint64_t atan_sign = is_steep != is_left ? kSignBit : 0;
  const DoubleDouble sum = FastTwoSum(base_turns * kHalfPiHigh, FlipSign(atan.hi, atan_sign));
  const double angle =
      Joined<kToOdd>({sum.hi, sum.lo + (base_turns * kHalfPiLow + FlipSign(atan.lo, atan_sign))});
  // Here atan(n/d) is n/d to within 2^-120 of it, and the ratio is rounded once, also if subnormal.
  const bool is_ratio = (base_turns == 0.0) & (ratio < 0x1p-60);
  const double result = FlipSign(Select(is_ratio, ratio, angle), BitsOf(y) & kSignBit);
  return Select(is_number, result, QuietNan());
}

}  // namespace internal

// The angle of the point (x, y), in (-pi, pi], with the special cases of IEEE 754's atan2: zeros
// and infinities are limits, Atan2(±0, -0) is ±pi rounded, Atan2(±0, +0) is ±0. Measured: at most
// 0.5017 ulp, subnormal results included.
SIMGRAD_FLAT inline double Atan2(double y, double x) { return internal::AngleAs<false>(y, x); }

// The angle in [-pi/2, pi/2] whose tangent is x. Measured: at most 0.5017 ulp.
SIMGRAD_FLAT inline double Atan(double x) { return internal::AngleAs<false>(x, 1.0); }

namespace narrow {
SIMGRAD_FLAT inline double Atan(double x) { return internal::AngleAs<true>(x, 1.0); }
}  // namespace narrow

}  // namespace simgrad::precision
