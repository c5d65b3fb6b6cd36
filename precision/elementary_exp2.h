// Exp2 in f64, and the same rounded to odd for narrower formats.
//
// Maths: x = n + f, n the nearest integer; 2^x = 2^n e^(f ln2), f ln2 as a DoubleDouble.
// Accuracy: before the last rounding a relative error below 2^-66; whole x give exact results. NaN
//   gives the canonical NaN.
// Cost: one Exp and ten operations, no branches. Threads: pure.
#pragma once

#include "precision/elementary_exp.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

template <bool kToOdd>
SIMGRAD_FLAT inline double Exp2As(double x) {
  constexpr double kLn2High = 0x1.62e42fefa39efp-1;
  constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
  // Beyond the clamp the result is already 0 or infinite.
  const double clamped = Clamp(x, -1100.0, 1030.0);
  const double shifted = clamped + kRoundingShifter;
  const double f = clamped - (shifted - kRoundingShifter);
  const DoubleDouble power = Product(f, kLn2High);
  const ScaledExp exp = ExpFromReduction(ReduceExp(power.hi, power.lo + f * kLn2Low));
  const double result =
      RoundScaledAs<kToOdd>(exp.mantissa, exp.exponent + IntegerOfShifted(shifted));
  return Select(x == x, result, QuietNan());
}

}  // namespace internal

// 2^x. Measured: at most 0.50001 ulp, subnormal results included.
SIMGRAD_FLAT inline double Exp2(double x) { return internal::Exp2As<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Exp2(double x) { return internal::Exp2As<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
