// Exp and Expm1 in f64, and the exponential with about 68 bits that the other functions share.
//
// Maths: x = k ln2/128 + r, |r| <= ln2/256; e^x = 2^(k div 128) 2^((k mod 128)/128) (1 + expm1(r)),
// with tabulated powers and the Taylor polynomial of degree 6, whose remainder is below 2^-72.
// Accuracy: with each function. NaN gives the canonical NaN.
// Cost: about 45 (Exp) floating-point operations, two table reads, no branches. Threads: pure.
#pragma once

#include "precision/double_double.h"
#include "precision/elementary_tables.h"

namespace simgrad::precision {
namespace internal {

// x + x_rest = k ln2/128 + r and expm1_r = e^r - 1.
struct ExpReduction {
  int64_t k;
  DoubleDouble expm1_r;
};

// For |x| < 2^17 ln2 and |x_rest| <= 2^-44. The absolute error of expm1_r is below 2^-69, the
// relative one, where k = 0, below 2^-60.
SIMGRAD_FLAT constexpr ExpReduction ReduceExp(double x, double x_rest) {
  constexpr double kInverseStep = 0x1.71547652b82fep+7;  // 128 / ln2
  constexpr double kStepHigh = 0x1.62e42fefcp-8;         // ln2/128 to 35 bits: k times it is exact
  constexpr double kStepLow = -0x1.c610ca86c3899p-44;    // ln2/128 - kStepHigh
  const double shifted = x * kInverseStep + kRoundingShifter;
  const double k = shifted - kRoundingShifter;
  const double r_high = x - k * kStepHigh;  // exact: the two are within a factor of 2, or k = 0
  const double r_low = x_rest - k * kStepLow;
  const double r = r_high + r_low;
  // e^r - 1 - r = r^2/2! + r^3/3! + ... + r^6/6!
  const double tail =
      r * r *
      (0x1p-1 +
       r * (0x1.5555555555555p-3 +
            r * (0x1.5555555555555p-5 + r * (0x1.1111111111111p-7 + r * 0x1.6c16c16c16c17p-10))));
  return {IntegerOfShifted(shifted), FastTwoSum(r_high, r_low + tail)};
}

// e^x = mantissa 2^exponent with mantissa in (0.99, 2); relative error below 2^-68.
struct ScaledExp {
  DoubleDouble mantissa;
  int64_t exponent;
};

SIMGRAD_FLAT inline ScaledExp ExpFromReduction(const ExpReduction& reduced) {
  const double high = ExpTableHigh(reduced.k & 127);
  const double low = ExpTableLow(reduced.k & 127);
  const double p = reduced.expm1_r.hi;
  const double p_top = TopBits(p);
  const DoubleDouble sum =
      FastTwoSum(high, high * p_top);  // high has 26 bits: the product is exact
  const double rest = high * ((p - p_top) + reduced.expm1_r.lo) + (low + low * p);
  return {FastTwoSum(sum.hi, sum.lo + rest), reduced.k >> 7};
}

// e^x - 1 = value 2^exponent for -40 <= x <= 710; relative error below 2^-59.
struct ScaledExpm1 {
  DoubleDouble value;
  int64_t exponent;
};

SIMGRAD_FLAT inline ScaledExpm1 ExpMinusOne(double x) {
  const ExpReduction reduced = ReduceExp(x, 0.0);
  const ScaledExp exp = ExpFromReduction(reduced);
  const bool is_small = reduced.k == 0;  // the first factor is 1 and would only cancel
  const double unit = Select(exp.exponent > 100, 0.0, PowerOfTwo(-exp.exponent));
  const DoubleDouble sum = TwoSum(exp.mantissa.hi, -unit);
  const DoubleDouble value = FastTwoSum(sum.hi, sum.lo + exp.mantissa.lo);
  return {{Select(is_small, reduced.expm1_r.hi, value.hi),
           Select(is_small, reduced.expm1_r.lo, value.lo)},
          exp.exponent};
}

SIMGRAD_FLAT constexpr double Clamp(double x, double low, double high) {
  return Select(x < low, low, Select(x > high, high, x));
}

}  // namespace internal

// e^x. Measured: at most 0.50001 ulp, subnormal results included.
SIMGRAD_FLAT inline double Exp(double x) {
  // Beyond the clamp the result is already 0 or infinite.
  const internal::ScaledExp exp =
      internal::ExpFromReduction(internal::ReduceExp(internal::Clamp(x, -760.0, 710.0), 0.0));
  const double result = internal::RoundScaled(exp.mantissa, exp.exponent);
  return internal::Select(x == x, result, internal::QuietNan());
}

// e^x - 1, without cancellation near 0. Expm1(-0) is -0. Measured: at most 0.5021 ulp.
SIMGRAD_FLAT inline double Expm1(double x) {
  // Below -40 the result rounds to -1.
  const internal::ScaledExpm1 expm1 = internal::ExpMinusOne(internal::Clamp(x, -40.0, 710.0));
  const int64_t half = expm1.exponent >> 1;
  const double result = ((expm1.value.hi + expm1.value.lo) * internal::PowerOfTwo(half)) *
                        internal::PowerOfTwo(expm1.exponent - half);
  const double or_zero = internal::Select(x == 0.0, x, result);
  return internal::Select(x == x, or_zero, internal::QuietNan());
}

}  // namespace simgrad::precision
