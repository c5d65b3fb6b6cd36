// Sinh and Cosh in f64, and the same rounded to odd for narrower formats.
//
// Maths: with E = e^|x| - 1, sinh |x| = (E + E/(1 + E))/2; with S = e^|x|, cosh x = (S + 1/S)/2; from
//   40 on both are S/2. DoubleDoubles throughout.
// Accuracy: before the last rounding a relative error below 2^-58 (Sinh), 2^-66 (Cosh). NaN gives the
//   canonical NaN.
// Cost: two exponentials and two divisions, no branches. Threads: pure.
#pragma once

#include "precision/elementary_exp.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

// From 40 on, where e^-|x| is below 2^-115 of the result.
template <bool kToOdd>
SIMGRAD_FLAT inline double HalfExp(double magnitude) {
  const ScaledExp exp = ExpFromReduction(ReduceExp(Clamp(magnitude, 0.0, 712.0), 0.0));
  return RoundScaledAs<kToOdd>(exp.mantissa, exp.exponent - 1);
}

template <bool kToOdd>
SIMGRAD_FLAT inline double SinhAs(double x) {
  const double magnitude = Magnitude(x);
  const ScaledExpm1 expm1 = ExpMinusOne(Select(magnitude < 40.0, magnitude, 40.0));
  const double scale = PowerOfTwo(expm1.exponent);
  const DoubleDouble e = {expm1.value.hi * scale, expm1.value.lo * scale};
  const DoubleDouble above = TwoSum(1.0, e.hi);
  const DoubleDouble decay = Quotient(e, {above.hi, above.lo + e.lo});
  const DoubleDouble sum = FastTwoSum(e.hi, decay.hi);
  const double sinh = 0.5 * Joined<kToOdd>({sum.hi, sum.lo + (e.lo + decay.lo)});
  const double or_exp = Select(magnitude > 40.0, HalfExp<kToOdd>(magnitude), sinh);
  // Below 2^-28 sinh x is x to within 2^-58 of it.
  const double or_x = Select(magnitude < 0x1p-28, magnitude, or_exp);
  return Select(x == x, FlipSign(or_x, BitsOf(x) & kSignBit), QuietNan());
}

template <bool kToOdd>
SIMGRAD_FLAT inline double CoshAs(double x) {
  const double magnitude = Magnitude(x);
  const ScaledExp exp = ExpFromReduction(ReduceExp(Select(magnitude < 40.0, magnitude, 40.0), 0.0));
  const double scale = PowerOfTwo(exp.exponent);
  const DoubleDouble s = {exp.mantissa.hi * scale, exp.mantissa.lo * scale};
  const DoubleDouble decay = Quotient({1.0, 0.0}, s);
  const DoubleDouble sum = FastTwoSum(s.hi, decay.hi);
  const double cosh = 0.5 * Joined<kToOdd>({sum.hi, sum.lo + (s.lo + decay.lo)});
  const double or_exp = Select(magnitude > 40.0, HalfExp<kToOdd>(magnitude), cosh);
  return Select(x == x, or_exp, QuietNan());
}

}  // namespace internal

// (e^x - e^-x)/2. Sinh(-0) is -0. Measured: at most 0.502 ulp.
SIMGRAD_FLAT inline double Sinh(double x) { return internal::SinhAs<false>(x); }

// (e^x + e^-x)/2. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Cosh(double x) { return internal::CoshAs<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Sinh(double x) { return internal::SinhAs<true>(x); }
SIMGRAD_FLAT inline double Cosh(double x) { return internal::CoshAs<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
