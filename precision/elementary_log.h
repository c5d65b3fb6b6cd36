// Log and Log1p in f64, and the logarithm with about 70 bits that the other functions share.
//
// Maths: u = 2^e m, m in [0.705, 1.411); m lies in one of 128 intervals with tabulated reciprocal
// c; log u = e ln2 - log c + log1p(r), r = m c - 1, |r| <= 2^-7.9, by the Taylor polynomial of
// degree 9. The interval of 1 has c = 1, so nothing cancels near u = 1.
// Accuracy: with each function. NaN gives the canonical NaN.
// Cost: about 55 floating-point operations, three table reads, no branches. Threads: pure.
#pragma once

#include "precision/double_double.h"
#include "precision/elementary_tables.h"

namespace simgrad::precision {
namespace internal {

// log(u + rest) for a normal u > 0 and |rest| <= ulp(u), plus exponent_offset ln2; relative error
// below 2^-68. The low half of rest counts where u = 1.
SIMGRAD_FLAT inline DoubleDouble LogOfSum(double u, DoubleDouble rest, int64_t exponent_offset) {
  constexpr uint64_t kFirstInterval = 0x3FE6900000000000u;  // its lower bound; width 2^45
  constexpr double kLn2High = 0x1.62e42fefa38p-1;           // ln2, a multiple of 2^-42
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;          // ln2 - kLn2High
  const uint64_t offset = BitsOf(u) - kFirstInterval;
  const int64_t i = static_cast<int64_t>((offset >> 45) & 127);
  const int64_t exponent = static_cast<int64_t>(offset) >> 52;
  const double m = DoubleOf(BitsOf(u) - (static_cast<uint64_t>(exponent) << 52));
  // For large u the rest is below the error.
  const double scale = Select(exponent > 200, 0.0, PowerOfTwo(-exponent));

  // r = m c - 1: c has 14 bits, so both products and the difference are exact.
  const double c = LogTableReciprocal(i);
  const double m_top = TopBits(m);
  const DoubleDouble mc = FastTwoSum(m_top * c - 1.0, (m - m_top) * c);
  const DoubleDouble r_sum = TwoSum(mc.hi, rest.hi * scale * c);
  const double r = r_sum.hi;
  const double r_low = (mc.lo + r_sum.lo) + rest.lo * scale * c;

  // base = e ln2 - log c, the high part exact.
  const double e = DoubleOfInteger(exponent + exponent_offset);
  const double base_high = e * kLn2High + LogTableHigh(i);
  const double base_low = e * kLn2Low + LogTableLow(i);

  // log1p(r) = r - r^2/2 + (r^3/3 - ... + r^9/9); r^2/2 as top^2/2 (exact) and what is left.
  const double top = TopBits(r);
  const double square_rest = 0.5 * ((r + top) * (r - top)) + r * r_low;
  const double tail =
      r * r * r *
      (0x1.5555555555555p-2 +
       r * (-0x1p-2 +
            r * (0x1.999999999999ap-3 +
                 r * (-0x1.5555555555555p-3 +
                      r * (0x1.2492492492492p-3 + r * (-0x1p-3 + r * 0x1.c71c71c71c71cp-4))))));
  const DoubleDouble first = FastTwoSum(base_high, r);
  const DoubleDouble second = FastTwoSum(first.hi, -0.5 * (top * top));
  const double low = (first.lo + second.lo) + ((r_low - square_rest) + (tail + base_low));
  return FastTwoSum(second.hi, low);
}

// log(x) for every finite x > 0, subnormals included; relative error below 2^-68.
SIMGRAD_FLAT inline DoubleDouble LogOfPositive(double x) {
  const bool is_subnormal = x < 0x1p-1022;
  return LogOfSum(x * (is_subnormal ? 0x1p+54 : 1.0), {}, is_subnormal ? -54 : 0);
}

}  // namespace internal

// log(x). Log(1) is +0, Log(±0) is -Inf, negative x gives NaN. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Log(double x) {
  const double log = internal::LogOfPositive(x).hi;
  const double finite_or_infinite = internal::Select(x < internal::Infinity(), log, x);
  const double or_pole = internal::Select(x == 0.0, -internal::Infinity(), finite_or_infinite);
  return internal::Select(x >= 0.0, or_pole, internal::QuietNan());
}

// log(1 + x), without cancellation near 0. Log1p(-0) is -0, Log1p(-1) is -Inf, x < -1 gives NaN.
// Measured: at most 0.50002 ulp.
SIMGRAD_FLAT inline double Log1p(double x) {
  const internal::DoubleDouble sum = internal::TwoSum(1.0, x);
  const double log = internal::LogOfSum(sum.hi, {sum.lo, 0.0}, 0).hi;
  const double finite_or_infinite = internal::Select(x < internal::Infinity(), log, x);
  const double or_zero = internal::Select(x == 0.0, x, finite_or_infinite);
  const double or_pole = internal::Select(x == -1.0, -internal::Infinity(), or_zero);
  return internal::Select(x >= -1.0, or_pole, internal::QuietNan());
}

}  // namespace simgrad::precision
