// How far a tested value lies from its threshold, for one comparison of one thread.
//
// Maths: precision/ulp.h.
// Accuracy: the bits of precision::MarginOf, except those of a NaN. Operands of narrow formats
//   arrive as float, so that only one addition and one product are of doubles.
// Errors: none. Threads: pure.
#pragma once

#include "precision/ulp.h"

namespace simgrad::sim::cuda::device {

using precision::BitsOf;

// A margin by magnitude and sign.
struct Distance {
  double absolute = 0.0, ulps = 0.0;  // magnitudes; of no meaning where it is no number
  bool negative = false;
  bool number = true;  // else the margin is NaN
};

SIMGRAD_HD inline bool IsNegative(double x) { return (BitsOf(x) >> 63) != 0; }
SIMGRAD_HD inline double MagnitudeOf(double x) {
  return precision::DoubleOf(BitsOf(x) & ~(uint64_t{1} << 63));
}

SIMGRAD_HD inline Distance IntegerDistance(int64_t a, int64_t b) {
  const double distance = precision::IntegerMargin(a, b);
  const double magnitude = MagnitudeOf(distance);
  return {magnitude, magnitude, IsNegative(distance), true};
}

// The larger of two magnitudes; NaN above all.
SIMGRAD_HD inline float LargerMagnitude(float a, float b) {
  const uint32_t first = BitsOf(a) & 0x7FFFFFFFu;
  const uint32_t second = BitsOf(b) & 0x7FFFFFFFu;
  return precision::FloatOf(first > second ? first : second);
}
SIMGRAD_HD inline double LargerMagnitude(double a, double b) {
  const uint64_t first = BitsOf(a) & ~(uint64_t{1} << 63);
  const uint64_t second = BitsOf(b) & ~(uint64_t{1} << 63);
  return precision::DoubleOf(first > second ? first : second);
}
SIMGRAD_HD inline double LargerMagnitude(float a, double b) {
  return LargerMagnitude(static_cast<double>(a), b);
}
SIMGRAD_HD inline double LargerMagnitude(double a, float b) {
  return LargerMagnitude(a, static_cast<double>(b));
}

// e of 2^e <= magnitude < 2^(e + 1), that of the largest finite number of F for infinity; no more
// than the least normal exponent of its type for what is subnormal there.
template <precision::Format F>
SIMGRAD_HD inline int ExponentOf(float magnitude) {
  constexpr float kLargest = static_cast<float>(precision::Traits(F).max_finite);
  const uint32_t field = BitsOf(magnitude) >> 23;
  return static_cast<int>(field == 255 ? BitsOf(kLargest) >> 23 : field) - 127;
}
template <precision::Format F>
SIMGRAD_HD inline int ExponentOf(double magnitude) {
  constexpr double kLargest = precision::Traits(F).max_finite;
  const uint64_t field = BitsOf(magnitude) >> 52;
  return static_cast<int>(field == 2047 ? BitsOf(kLargest) >> 52 : field) - 1023;
}

// The distance of a comparison of reals in format F; precision::MarginOf divides by the ulp.
template <precision::Format F, class A, class B, class Extra>
SIMGRAD_HD inline Distance DistanceOf(A a, B b, Extra extra_magnitude) {
  if constexpr (F == precision::Format::kF64) {
    const precision::Margin margin = precision::MarginOf(F, a, b, extra_magnitude);
    return {MagnitudeOf(margin.absolute), MagnitudeOf(margin.ulps), IsNegative(margin.absolute),
            margin.ulps == margin.ulps};
  } else {
    const auto magnitude = LargerMagnitude(LargerMagnitude(a, b), extra_magnitude);
    const int last_place = ExponentOf<F>(magnitude) + 1 - precision::Traits(F).precision;
    const int ulp = last_place > precision::Traits(F).emin ? last_place : precision::Traits(F).emin;
    const double difference = static_cast<double>(a) - static_cast<double>(b);
    const double absolute = MagnitudeOf(difference);
    // 2^-ulp is a normal double: a product with it rounds as the quotient does.
    const double ulps = absolute * precision::DoubleOf(static_cast<uint64_t>(1023 - ulp) << 52);
    return {absolute, ulps, IsNegative(difference),
            difference == difference && magnitude == magnitude};
  }
}

}  // namespace simgrad::sim::cuda::device
