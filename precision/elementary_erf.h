// Erf and Erfc in f64, and the same rounded to odd for narrower formats.
//
// Maths: below 1/4 erf x = x P(x^2) by its Taylor series, else erfc x = e^(-x^2) erfcx(x), x^2 as a
//   DoubleDouble and erfcx by its Taylor polynomial of degree 14 at the middle of one of 56
//   intervals; erf x = 1 - erfc x, erfc(-x) = 1 + erf x. The first terms are DoubleDoubles.
// Accuracy: before the last rounding a relative error below 2^-57. NaN gives the canonical NaN.
// Cost: one Exp and about 80 floating-point operations, no branches. Threads: pure.
#pragma once

#include "precision/elementary_erf_table.h"
#include "precision/elementary_exp.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

// erf x for |x| <= 1/4.
SIMGRAD_FLAT constexpr DoubleDouble ErfOfSmall(double x) {
  constexpr double kHigh = 0x1.20dd750429b6dp+0;  // 2 / sqrt(pi)
  constexpr double kLow = 0x1.1ae3a914fed8p-56;
  const double z = x * x;
  const double series =
      -0x1.812746b0379e7p-2 +
      z * (0x1.ce2f21a042be2p-4 +
           z * (-0x1.b82ce31288b51p-6 +
                z * (0x1.565bcd0e6a53fp-8 +
                     z * (-0x1.c02db40040b86p-11 +
                          z * (0x1.f9a326f9b89b7p-14 +
                               z * (-0x1.f4d25c3e0c2ebp-17 +
                                    z * (0x1.b9e6c9dc651a3p-20 +
                                         z * (-0x1.5f742ec43e71ap-23 +
                                              z * (0x1.fcc5720624c1cp-27 +
                                                   z * -0x1.51d7181c5d36dp-30)))))))));
  const DoubleDouble first = Product(x, kHigh);
  return FastTwoSum(first.hi, first.lo + (x * kLow + x * (z * series)));
}

// e^(x^2) erfc(x) for x in [1/4, 32).
SIMGRAD_FLAT inline DoubleDouble Erfcx(double x) {
  const uint64_t bits = BitsOf(x);
  const int64_t i = static_cast<int64_t>((bits - BitsOf(0.25)) >> 49);
  const double d = x - DoubleOf(((bits >> 49) << 49) | (uint64_t{1} << 48));  // exact
  double rest = ErfcxTable(i, kErfcxDegree);
  for (int64_t k = kErfcxDegree - 1; k >= 2; --k) rest = ErfcxTable(i, k) + d * rest;
  const DoubleDouble slope = Product(ErfcxTable(i, 1), d);
  const DoubleDouble sum = FastTwoSum(ErfcxTable(i, 0), slope.hi);
  const double low = (slope.lo + d * ErfcxTable(i, kErfcxDegree + 2)) +
                     (ErfcxTable(i, kErfcxDegree + 1) + d * d * rest);
  return FastTwoSum(sum.hi, sum.lo + low);
}

// erfc x = mantissa 2^exponent for x in [1/4, 28], mantissa in [1/2, 2) from 16 on.
SIMGRAD_FLAT inline ScaledExp ErfcOfLarge(double x) {
  const DoubleDouble square = Product(x, x);
  const ScaledExp exp = ExpFromReduction(ReduceExp(-square.hi, -square.lo));
  const DoubleDouble erfcx = Erfcx(x);
  const DoubleDouble product = Product(exp.mantissa.hi, erfcx.hi);
  const double low = product.lo + (exp.mantissa.hi * erfcx.lo + exp.mantissa.lo * erfcx.hi);
  return {{product.hi * 32.0, low * 32.0}, exp.exponent - 5};
}

SIMGRAD_FLAT constexpr DoubleDouble OneMinus(DoubleDouble x) {
  const DoubleDouble sum = TwoSum(1.0, -x.hi);
  return {sum.hi, sum.lo - x.lo};
}

// For every argument: where it is below 1/4 or a NaN the large way gets 1/4 and is not taken.
SIMGRAD_FLAT inline ScaledExp ErfcOfClamped(double magnitude, double highest) {
  const double least = Select(magnitude > 0.25, magnitude, 0.25);
  return ErfcOfLarge(Select(least < highest, least, highest));
}

template <bool kToOdd>
SIMGRAD_FLAT inline double ErfAs(double x) {
  const double magnitude = Magnitude(x);
  // Numbers next to the smallest would lose digits of their products.
  const bool is_tiny = magnitude < 0x1p-900;
  const double scale = Select(is_tiny, 0x1p+200, 1.0);
  const DoubleDouble small = ErfOfSmall(Select(magnitude < 0.25, magnitude * scale, 0.0));
  const double of_small = Joined<kToOdd>(small) * Select(is_tiny, 0x1p-200, 1.0);
  // From 6 on it rounds to 1.
  const ScaledExp erfc = ErfcOfClamped(magnitude, 6.5);
  const double power = PowerOfTwo(erfc.exponent);
  const double of_large =
      Joined<kToOdd>(OneMinus({erfc.mantissa.hi * power, erfc.mantissa.lo * power}));
  const double result = Select(magnitude < 0.25, of_small, of_large);
  return Select(x == x, FlipSign(result, BitsOf(x) & kSignBit), QuietNan());
}

template <bool kToOdd>
SIMGRAD_FLAT inline double ErfcAs(double x) {
  const double magnitude = Magnitude(x);
  const bool is_small = magnitude < 0.25;
  const DoubleDouble of_small = OneMinus(ErfOfSmall(Select(is_small, x, 0.0)));
  const ScaledExp erfc = ErfcOfClamped(magnitude, 28.0);
  // Left of 0 it is 2 - erfc |x|, which is 2 from 6 on.
  const double power = Select(magnitude < 6.5, PowerOfTwo(erfc.exponent), 0.0);
  const DoubleDouble left = TwoSum(2.0, -(erfc.mantissa.hi * power));
  const DoubleDouble or_left = {Select(is_small, of_small.hi, left.hi),
                                Select(is_small, of_small.lo, left.lo - erfc.mantissa.lo * power)};
  const double near = Joined<kToOdd>(or_left);
  const double far = RoundScaledAs<kToOdd>(erfc.mantissa, erfc.exponent);
  return Select(x == x, Select(x >= 0.25, far, near), QuietNan());
}

}  // namespace internal

// 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x. Erf(-0) is -0. Measured: at most 0.57 ulp,
// 0.75 where the result is subnormal.
SIMGRAD_FLAT inline double Erf(double x) { return internal::ErfAs<false>(x); }

// 1 - erf x, without cancellation. Measured: at most 0.5180 ulp, subnormal results included.
SIMGRAD_FLAT inline double Erfc(double x) { return internal::ErfcAs<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Erf(double x) { return internal::ErfAs<true>(x); }
SIMGRAD_FLAT inline double Erfc(double x) { return internal::ErfcAs<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
