// Asin and Acos in f64, and the same rounded to odd for narrower formats.
//
// Maths: c = sqrt((1 - |x|)(1 + |x|)); the angle whose sine is |x| is atan(|x|/c), or pi/2 - atan(c/|x|)
//   where |x| is the larger; DoubleDoubles throughout. Acos is pi/2 less that, put together so that
//   nothing cancels next to 1.
// Accuracy: before the last rounding a relative error below 2^-61. |x| > 1 and NaN give the canonical
//   NaN.
// Cost: a square root, four divisions and two table reads, no branches. Threads: pure.
#pragma once

#include "precision/elementary_atan.h"
#include "precision/elementary_root.h"

namespace simgrad::precision {
namespace internal {

// The angle of the point (c, |x|) on the unit circle: from the axis that is nearer, in [0, pi/4].
struct CircleAngle {
  bool is_steep;  // measured from pi/2 downwards
  DoubleDouble angle;
};

SIMGRAD_FLAT inline CircleAngle AngleOnCircle(double magnitude) {
  const DoubleDouble below = TwoSum(1.0, -magnitude);
  const DoubleDouble above = TwoSum(1.0, magnitude);
  const DoubleDouble square = Product(below.hi, above.hi);
  const DoubleDouble c =
      RootOf({square.hi, square.lo + (below.hi * above.lo + below.lo * above.hi)});
  const bool is_steep = magnitude > 0x1.6a09e667f3bcdp-1;
  const DoubleDouble n = {Select(is_steep, c.hi, magnitude), Select(is_steep, c.lo, 0.0)};
  const DoubleDouble d = {Select(is_steep, magnitude, c.hi), Select(is_steep, 0.0, c.lo)};
  return {is_steep, AtanOfQuotient(n, d)};
}

// turns pi/2 plus the angle, or minus it where its sign is flipped.
template <bool kToOdd>
SIMGRAD_FLAT inline double TurnedAngle(double turns, DoubleDouble angle, uint64_t sign) {
  constexpr double kHigh = 0x1.921fb54442d18p+0;  // pi/2 to 107 bits
  constexpr double kLow = 0x1.1a62633145c07p-54;
  const DoubleDouble sum = FastTwoSum(turns * kHigh, FlipSign(angle.hi, sign));
  return Joined<kToOdd>({sum.hi, sum.lo + (turns * kLow + FlipSign(angle.lo, sign))});
}

template <bool kToOdd>
SIMGRAD_FLAT inline double AsinAs(double x) {
  const double magnitude = Magnitude(x);
  const bool is_inside = magnitude <= 1.0;
  const CircleAngle on_circle = AngleOnCircle(Select(is_inside, magnitude, 0.0));
  const bool is_steep = on_circle.is_steep;
  const double angle =
      TurnedAngle<kToOdd>(Select(is_steep, 1.0, 0.0), on_circle.angle, is_steep ? kSignBit : 0);
  // Below 2^-30 asin x is x to within 2^-62 of it.
  const double or_x = Select(magnitude < 0x1p-30, magnitude, angle);
  return Select(is_inside, FlipSign(or_x, BitsOf(x) & kSignBit), QuietNan());
}

template <bool kToOdd>
SIMGRAD_FLAT inline double AcosAs(double x) {
  const double magnitude = Magnitude(x);
  const bool is_inside = magnitude <= 1.0;
  const CircleAngle on_circle = AngleOnCircle(Select(is_inside, magnitude, 0.0));
  const bool is_steep = on_circle.is_steep;
  const bool is_left = x < 0.0;
  const double turns = Select(is_steep, Select(is_left, 2.0, 0.0), 1.0);
  const double angle =
      TurnedAngle<kToOdd>(turns, on_circle.angle, is_steep == is_left ? kSignBit : 0);
  // Next to 0 the sign of the angle is that of x, and it is as good as pi/2 - x.
  const double near_middle = TurnedAngle<kToOdd>(1.0, {x, 0.0}, kSignBit);
  const double result = Select(magnitude < 0x1p-30, near_middle, angle);
  return Select(is_inside, result, QuietNan());
}

}  // namespace internal

// The angle in [-pi/2, pi/2] whose sine is x. Asin(-0) is -0. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Asin(double x) { return internal::AsinAs<false>(x); }

// The angle in [0, pi] whose cosine is x. Acos(1) is +0. Measured: at most 0.50001 ulp.
SIMGRAD_FLAT inline double Acos(double x) { return internal::AcosAs<false>(x); }

namespace narrow {
SIMGRAD_FLAT inline double Asin(double x) { return internal::AsinAs<true>(x); }
SIMGRAD_FLAT inline double Acos(double x) { return internal::AcosAs<true>(x); }
}  // namespace narrow

}  // namespace simgrad::precision
