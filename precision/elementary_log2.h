// Log2 in f64, and the same rounded to odd for narrower formats.
//
// Maths: the natural logarithm as a DoubleDouble, times 1/ln2.
// Accuracy: before the last rounding a relative error below 2^-66, so powers of two give exact
//   results. NaN gives the canonical NaN.
// Cost: one Log and fifteen operations, no branches. Threads: pure.
#pragma once

#include "precision/elementary_log.h"
#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

template <bool kToOdd>
SIMGRAD_FLAT inline double Log2As(double x) {
  constexpr double kInverseLn2High = 0x1.71547652b82fep+0;
  constexpr double kInverseLn2Low = 0x1.777d0ffda0d24p-56;
  const DoubleDouble log = LogOfPositive(x);
  const DoubleDouble product = Product(log.hi, kInverseLn2High);
  const double low = product.lo + (log.hi * kInverseLn2Low + log.lo * kInverseLn2High);
  const double finite_or_infinite = Select(x < Infinity(), Joined<kToOdd>({product.hi, low}), x);
  const double or_pole = Select(x == 0.0, -Infinity(), finite_or_infinite);
  return Select(x >= 0.0, or_pole, QuietNan());
}

}  // namespace internal

// log2(x). Log2(1) is +0, Log2(±0) is -Inf, negative x gives NaN. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Log2(double x) { return internal::Log2As<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Log2(double x) { return internal::Log2As<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
