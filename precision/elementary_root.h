// Rsqrt and Cbrt in f64, and the same rounded to odd for narrower formats; square roots as
// DoubleDoubles.
//
// Maths: a root in f64, corrected by one step of Newton's whose remainder is exact to 2^-100. Cbrt
//   begins with a third of the exponent and mantissa bits and two of Halley's steps.
// Accuracy: before the last rounding a relative error below 2^-90, so exact results are exact. NaN
//   gives the canonical NaN.
// Cost: a square root and two divisions; Cbrt three divisions. No branches. Threads: pure.
#pragma once

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

#include "precision/joined.h"

namespace simgrad::precision {
namespace internal {

// sqrt(a) for a = 0 or a in [2^-600, 2^600].
SIMGRAD_FLAT inline DoubleDouble RootOf(DoubleDouble a) {
  const double root = ::sqrt(a.hi);
  const DoubleDouble square = Product(root, root);
  const double remainder = ((a.hi - square.hi) - square.lo) + a.lo;
  const double low = Select(root > 0.0, remainder / (root + root), 0.0);
  return FastTwoSum(root, low);
}

// A power of two whose square (or cube) brings x away from the ends of the range.
struct RootScale {
  double of_argument;
  double of_result;
};

SIMGRAD_FLAT constexpr RootScale ScaleForRoot(double magnitude, double result_of_large) {
  const bool is_large = magnitude > 0x1p+500;
  const bool is_small = magnitude < 0x1p-500;
  return {Select(is_large, 0x1p-600, Select(is_small, 0x1p+600, 1.0)),
          Select(is_large, result_of_large, Select(is_small, 1.0 / result_of_large, 1.0))};
}

template <bool kToOdd>
SIMGRAD_FLAT inline double RsqrtAs(double x) {
  const RootScale scale = ScaleForRoot(x, 0x1p-300);
  const bool is_regular = (x > 0.0) & (x < Infinity());
  const DoubleDouble root = RootOf({Select(is_regular, x * scale.of_argument, 1.0), 0.0});
  const double result = Joined<kToOdd>(Quotient({1.0, 0.0}, root)) * scale.of_result;
  const double pole = FlipSign(Infinity(), BitsOf(x) & kSignBit);
  const double or_end = Select(x == 0.0, pole, Select(x > 0.0, 0.0, QuietNan()));
  return Select(is_regular, result, or_end);
}

template <bool kToOdd>
SIMGRAD_FLAT inline double CbrtAs(double x) {
  // (1 - 1/3) 1023 2^52, less what makes the largest error of the first value small.
  constexpr uint64_t kThird = 0x2A9F789300000000u;
  const double magnitude = Magnitude(x);
  const RootScale scale = ScaleForRoot(magnitude, 0x1p+200);
  const bool is_regular = (magnitude > 0.0) & (magnitude < Infinity());
  const double m = Select(is_regular, magnitude * scale.of_argument, 1.0);
  double y = DoubleOf(BitsOf(m) / 3 + kThird);
  for (int step = 0; step < 2; ++step) {  // 5, 15, 45 bits
    const double cube = y * y * y;
    y = y * ((cube + (m + m)) / ((cube + cube) + m));
  }
  const DoubleDouble square = Product(y, y);
  const DoubleDouble cube = Product(square.hi, y);
  const double remainder = (m - cube.hi) - (cube.lo + square.lo * y);
  const DoubleDouble root = FastTwoSum(y, remainder / (3.0 * square.hi));
  const double result = FlipSign(Joined<kToOdd>(root) * scale.of_result, BitsOf(x) & kSignBit);
  return Select(x == x, Select(is_regular, result, x), QuietNan());
}

}  // namespace internal

// 1 / sqrt(x). Rsqrt(±0) is ±Inf, negative x gives NaN. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Rsqrt(double x) { return internal::RsqrtAs<false>(x); }

// The real cube root, with the sign of x. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Cbrt(double x) { return internal::CbrtAs<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Rsqrt(double x) { return internal::RsqrtAs<true>(x); }
SIMGRAD_FLAT inline double Cbrt(double x) { return internal::CbrtAs<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
