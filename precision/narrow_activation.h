// Tanh, Sigmoid and Softplus for f32 and narrower: one evaluation in f64, to be rounded once.
//
// Maths: quotients and a logarithm of the exponential of precision/narrow_exp.h, of an argument
//   whose sign keeps it from overflowing.
// Units: x is a value of f32 (bf16 and f16 are among them), as a double; so is the result.
// Accuracy: relative error below 2^-50 (measured: Tanh 2^-51.3, Softplus 2^-51.8); Sigmoid below
//   2^-15 in magnitude 2^-41, on purpose. Rounded once, the result is correct for every f32, whether
//   multiply-adds are fused or not (ADR 0030, ADR 0080).
// Errors: none; NaN gives the canonical NaN.
// Cost: one exponential and one division (Softplus: and a logarithm), no table, no branch.
// Threads: pure; host and device.
#pragma once

#include "precision/narrow_exp.h"
#include "precision/narrow_log.h"

namespace simgrad::precision::narrow {

// tanh(x) = n/(n + 2), n = e^(2|x|) - 1, with the sign of x. n errs by 2^-51, the sum and the
// quotient add 2^-53 each.
SIMGRAD_FLAT constexpr double Tanh(double x) {
  const double magnitude = internal::Magnitude(x);
  // From 9.1 on the result rounds to 1.
  const ExpParts exp = SplitExp(internal::Select(magnitude < 20.0, magnitude + magnitude, 40.0));
  const double n = internal::MultiplyAdd(exp.scale, exp.p, exp.scale - 1.0);
  const double with_sign = internal::FlipSign(n / (n + 2.0), BitsOf(x) & internal::kSignBit);
  return internal::Select(x == x, with_sign, internal::QuietNan());
}

// e^-|x|, for |x| of any size; below 2^-150 it is 2^-150.04, which all formats round to 0.
SIMGRAD_FLAT constexpr ExpParts SplitDecay(double x) {
  const double exponent = -internal::Magnitude(x);
  return SplitExp(internal::Select(exponent < -104.0, -104.0, exponent));
}

// 1/(1 + t) or t/(1 + t), t = e^-|x|. For |x| < 2^-15 it is 1/2 + x/4 (1 - d) with d = x^2/12 <
// 2^-33: next to x/4 but nearer to 0, where f64 could not tell it from 1/2 + x/4, which lies in the
// middle of two values of f32 for hundreds of x. No such middle lies between x/4 and
// x/4 (1 - 2^-26), since x/4 has 24 bits.
SIMGRAD_FLAT constexpr double Sigmoid(double x) {
  const ExpParts exp = SplitDecay(x);
  const double t = internal::MultiplyAdd(exp.scale, exp.p, exp.scale);
  const double quotient = internal::Select(x < 0.0, t, 1.0) / (1.0 + t);
  const double near_half = internal::MultiplyAdd(x, 0.25 * (1.0 - 0x1p-26), 0.5);
  const double result = internal::Select(internal::Magnitude(x) < 0x1p-15, near_half, quotient);
  return internal::Select(x == x, result, internal::QuietNan());
}

// log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|. 1 + t lies in (1, 2]: for t from sqrt(2) - 1 on
// as 2 (1 + (t - 1)/2), else as 1 + t, so that t is never rounded into a sum with 1.
SIMGRAD_FLAT constexpr double Softplus(double x) {
  const ExpParts exp = SplitDecay(x);
  const double t = internal::MultiplyAdd(exp.scale, exp.p, exp.scale);
  const bool is_upper = t > 0x1.a827999fcef32p-2;
  const internal::DoubleDouble log = LogOfParts(internal::Select(is_upper, 1.0, 0.0),
                                                internal::Select(is_upper, 0.5 * (t - 1.0), t));
  const double result = internal::Select(x > 0.0, x, 0.0) + log.hi;
  // The one f32 whose result f64 takes for the middle of two values, from which it is 2^-57 away.
  const double or_hard = internal::Select(x == 0x1.d483ap-12, 0x1.63017ap-1, result);
  return internal::Select(x == x, or_hard, internal::QuietNan());
}

}  // namespace simgrad::precision::narrow
