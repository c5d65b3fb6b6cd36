// Exp and Expm1 for f32 and narrower: one evaluation in f64, to be rounded once.
//
// Maths: x = k ln2 + r, |r| <= ln2/2; e^x = 2^k (1 + p), p = r + r^2 q(r) = e^r - 1, with q the
//   minimax polynomial of degree 9 (error 2^-57.9 of e^r).
// Units: x is a value of f32 (bf16 and f16 are among them), as a double; so is the result.
// Accuracy: relative error below 2^-52 for Exp (measured 2^-52.5), 2^-51 for Expm1 (2^-51.5). k times
//   the high part of ln2 and its difference from x are exact, so r errs by half an ulp, 2^-55; p by
//   that and three roundings, 2^-54 in all; the last sum by 2^-53. Fused multiply-adds err less.
//   Rounded once, the result is correct for every f32 (ADR 0030, ADR 0080).
// Errors: none; NaN gives the canonical NaN.
// Cost: 40 operations, 27 where multiply-adds are fused; no table, no branch, no division. Threads:
//   pure; host and device.
#pragma once

#include "precision/multiply_add.h"

namespace simgrad::precision::narrow {

// e^x = scale (1 + p).
struct ExpParts {
  double p;
  double scale;
};

// For -1000 < x < 1000; where scale is 1, p has a small relative error too.
SIMGRAD_FLAT constexpr ExpParts SplitExp(double x) {
  using internal::MultiplyAdd;
  constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa4p-1;      // 39 bits: k times it is exact
  constexpr double kLn2Low = -0x1.8432a1b0e2634p-43;  // ln2 - kLn2High
  const double shifted = MultiplyAdd(x, kInverseLn2, internal::kRoundingShifter);
  const double k = shifted - internal::kRoundingShifter;
  const double r = MultiplyAdd(k, -kLn2Low, MultiplyAdd(k, -kLn2High, x));
  const double square = r * r;
  double even = MultiplyAdd(square, 0x1.28ad74805f802p-22, 0x1.a0199a0b8400bp-16);
  even = MultiplyAdd(square, even, 0x1.6c16c18429e04p-10);
  even = MultiplyAdd(square, even, 0x1.5555555550881p-5);
  even = MultiplyAdd(square, even, 0x1.000000000000ap-1);
  double odd = MultiplyAdd(square, 0x1.ad7e9763460eap-26, 0x1.71df260009471p-19);
  odd = MultiplyAdd(square, odd, 0x1.a01a0129f5a1cp-13);
  odd = MultiplyAdd(square, odd, 0x1.1111111127d51p-7);
  odd = MultiplyAdd(square, odd, 0x1.55555555554f9p-3);
  // The low bits of `shifted` are k; the shift drops all but the twelve that reach the exponent.
  return {MultiplyAdd(square, MultiplyAdd(r, odd, even), r),
          DoubleOf((BitsOf(shifted) << 52) + BitsOf(1.0))};
}

// x within the range outside which e^x rounds to 0 or Inf.
SIMGRAD_FLAT constexpr double ClampExp(double x) {
  return internal::Select(x < -104.0, -104.0, internal::Select(x > 89.0, 89.0, x));
}

SIMGRAD_FLAT constexpr double Exp(double x) {
  const ExpParts exp = SplitExp(ClampExp(x));
  return internal::Select(x == x, internal::MultiplyAdd(exp.scale, exp.p, exp.scale),
                          internal::QuietNan());
}

// e^x - 1, of the sign of x also where it is zero.
SIMGRAD_FLAT constexpr double Expm1(double x) {
  const ExpParts exp = SplitExp(ClampExp(x));
  const double expm1 = internal::MultiplyAdd(exp.scale, exp.p, exp.scale - 1.0);
  const double with_sign = DoubleOf(BitsOf(expm1) | (BitsOf(x) & internal::kSignBit));
  return internal::Select(x == x, with_sign, internal::QuietNan());
}

}  // namespace simgrad::precision::narrow
