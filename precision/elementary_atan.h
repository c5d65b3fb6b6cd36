// Atan2 in f64.
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

namespace simgrad::precision {
namespace internal {

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
  const double square = r.hi * r.hi;
  // r - atan r = r^3/3 - r^5/5 + r^7/7 - r^9/9
  const double tail = r.hi * square *
                      (0x1.5555555555555p-2 +
                       square * (-0x1.999999999999ap-3 +
                                 square * (0x1.2492492492492p-3 + square * -0x1.c71c71c71c71cp-4)));
  const DoubleDouble sum = FastTwoSum(AtanTableHigh(j), r.hi);
  return FastTwoSum(sum.hi, sum.lo + (AtanTableLow(j) + (r.lo - tail)));
}

}  // namespace internal

// The angle of the point (x, y), in (-pi, pi], with the special cases of IEEE 754's atan2: zeros
// and infinities are limits, Atan2(±0, -0) is ±pi rounded, Atan2(±0, +0) is ±0. Measured: at most
// 0.5014 ulp, subnormal results included.
SIMGRAD_FLAT inline double Atan2(double y, double x) {
  constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;  // pi/2 to 107 bits
  constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
  const double y_magnitude = internal::Magnitude(y);
  const double x_magnitude = internal::Magnitude(x);
  const bool is_steep = y_magnitude > x_magnitude;
  const bool is_left = (BitsOf(x) & internal::kSignBit) != 0;
  const double larger = internal::Select(is_steep, y_magnitude, x_magnitude);
  const double smaller = internal::Select(is_steep, x_magnitude, y_magnitude);
  const bool is_number = (x == x) & (y == y);
  // Infinite: the ratio is 1 where both are, else 0. Both zero, or a NaN: 0.
  const double infinity = internal::Infinity();
  const bool is_regular = is_number & (larger < infinity) & (larger > 0.0);
  const double d = internal::Select(is_regular, larger, 1.0);
  const double n =
      internal::Select(is_regular, smaller, internal::Select(smaller == infinity, 1.0, 0.0));
  const double ratio = n / d;
  const internal::DoubleDouble atan = internal::AtanOfRatio(n, d, ratio);

  const double base_turns = internal::Select(is_steep, 1.0, internal::Select(is_left, 2.0, 0.0));
  const uint64_t atan_sign = is_steep != is_left ? internal::kSignBit : 0;
  const internal::DoubleDouble sum =
      internal::FastTwoSum(base_turns * kHalfPiHigh, internal::FlipSign(atan.hi, atan_sign));
  const double angle =
      sum.hi + (sum.lo + (base_turns * kHalfPiLow + internal::FlipSign(atan.lo, atan_sign)));
  // Here atan(n/d) is n/d to within 2^-120 of it, and the ratio is rounded once, also if subnormal.
  const bool is_ratio = (base_turns == 0.0) & (ratio < 0x1p-60);
  const double result =
      internal::FlipSign(internal::Select(is_ratio, ratio, angle), BitsOf(y) & internal::kSignBit);
  return internal::Select(is_number, result, internal::QuietNan());
}

}  // namespace simgrad::precision
