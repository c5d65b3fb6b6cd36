// Sin and Cos for f32 and narrower: one evaluation in f64, to be rounded once.
//
// Maths: |x| = k pi + r for sin, (k + 1/2) pi + r for cos, |r| <= pi/2; the result is sin r up to its
//   sign, sin r = r + r^3 P(r^2), with P the minimax polynomial of degree 7 (error 2^-61 of sin r).
// Units: x is a value of f32 (bf16 and f16 are among them), as a double; so is the result.
// Accuracy: relative error below 2^-51 (measured 2^-51.7): r = high + low to 2^-90, and no f32 of
//   this range is closer than 2^-32 to a zero; r^3 P has four roundings and is at most 0.57 of a
//   result of 1. Rounded once, the result is correct for every f32, whether multiply-adds are fused or
//   not (ADR 0030, ADR 0080).
// Errors: none; Inf and NaN give the canonical NaN.
// Cost: 35 operations below 2^22, 25 where multiply-adds are fused; no table, no branch, no division. From 2^22 on the f64
//   algorithm, for which a group of lanes branches as a whole. Threads: pure; host and device.
#pragma once

#include "precision/elementary_trig.h"
#include "precision/multiply_add.h"

namespace simgrad::precision::narrow {

// Whether the sequence of moderate arguments does not hold; also for Inf, not for NaN.
SIMGRAD_FLAT constexpr bool IsHugeAngle(double x) { return internal::Magnitude(x) >= 0x1p+22; }

// sin(magnitude - k pi), times -1 where flip is kSignBit; for |k| < 2^21, 2 k whole.
SIMGRAD_FLAT constexpr double SinFromHalfTurns(double magnitude, double k, uint64_t flip) {
  using internal::MultiplyAdd;
  // pi in two parts of 31 bits and the rest.
  constexpr double kPart1 = 0x1.921fb544p+1;
  constexpr double kPart2 = 0x1.0b4611a8p-33;
  constexpr double kPart3 = -0x1.d9cceba3f91f2p-65;
  const double first = MultiplyAdd(k, -kPart1, magnitude);  // exact
  const double step = k * kPart2;                           // exact
  const double second = first - step;
  const double rest = MultiplyAdd(k, -kPart3, (first - second) - step);
  const double r = second + rest;
  const double low = (second - r) + rest;
  const double z = r * r;
  const double w = z * z;
  double even = MultiplyAdd(w, -0x1.ae47cebc15422p-41, -0x1.ae645523a6143p-26);
  even = MultiplyAdd(w, even, -0x1.a01a01a016e6dp-13);
  even = MultiplyAdd(w, even, -0x1.5555555555555p-3);
  double odd = MultiplyAdd(w, 0x1.889dd0d3f58ebp-49, 0x1.6123df03c1debp-33);
  odd = MultiplyAdd(w, odd, 0x1.71de3a5363d32p-19);
  odd = MultiplyAdd(w, odd, 0x1.11111111110f4p-7);
  // low cos r, cos r by the parabola through its zero: low is half an ulp of r.
  const double of_low = low * MultiplyAdd(z, -0x1.9f02f6222c72p-2, 1.0);
  const double tail = MultiplyAdd(r * z, MultiplyAdd(z, odd, even), of_low);
  return internal::FlipSign(r + tail, flip);
}

SIMGRAD_FLAT constexpr double SinOfModerate(double x) {
  constexpr double kInversePi = 0x1.45f306dc9c883p-2;
  const double magnitude = internal::Magnitude(x);
  const double shifted = internal::MultiplyAdd(magnitude, kInversePi, internal::kRoundingShifter);
  const double k = shifted - internal::kRoundingShifter;
  const double sin = SinFromHalfTurns(magnitude, k, BitsOf(shifted) << 63);
  // The one f32 whose result f64 takes for the middle of two values, from which it is 2^-56 away.
  const double or_hard = internal::Select(magnitude == 0x1.33333p+13, -0x1.63f4bap-2, sin);
  const double with_sign = internal::FlipSign(or_hard, BitsOf(x) & internal::kSignBit);
  return internal::Select(x == x, with_sign, internal::QuietNan());
}

// cos((n + 1/2) pi + r) = -(-1)^n sin r.
SIMGRAD_FLAT constexpr double CosOfModerate(double x) {
  constexpr double kInversePi = 0x1.45f306dc9c883p-2;
  const double magnitude = internal::Magnitude(x);
  const double shifted =
      internal::MultiplyAdd(magnitude, kInversePi, -0.5) + internal::kRoundingShifter;
  const double k = (shifted - internal::kRoundingShifter) + 0.5;
  const uint64_t flip = ~(BitsOf(shifted) << 63) & internal::kSignBit;
  return internal::Select(x == x, SinFromHalfTurns(magnitude, k, flip), internal::QuietNan());
}

SIMGRAD_FLAT inline double Sin(double x) {
  return IsHugeAngle(x) ? internal::SinOfQuarterTurns<true>(x, 0, BitsOf(x) & internal::kSignBit)
                        : SinOfModerate(x);
}

SIMGRAD_FLAT inline double Cos(double x) {
  return IsHugeAngle(x) ? internal::SinOfQuarterTurns<true>(x, 1, 0) : CosOfModerate(x);
}

}  // namespace simgrad::precision::narrow
