// The elementary functions for f32, bf16 and f16: f64 sequences whose result is rounded once.
//
// Maths: narrow::Exp, Expm1, Log, Log1p, Sin, Cos, Tanh, Sigmoid, Softplus, for arguments that are
//   values of f32; shorter than those of precision/elementary.h, since an error of some 2^-51 is
//   enough. Exp2, Log2, Tan, Asin, Acos, Atan, Sinh, Cosh, Rsqrt, Cbrt, Erf and Erfc are the sequences
//   of f64, rounded to odd at last; they stand beside those. Pow and Atan2 are those of f64; only the Atan2 of bf16 differs, in subnormal results.
// Units: arguments and results are doubles; RoundTo or Lane<F>::Round gives the value of the format.
// Accuracy: after the rounding. One operand: the correctly rounded value of the real function, which
//   every_float (tests/precision) shows for all arguments. Two operands: correctly rounded in bf16
//   and f16, for all arguments as well; below 0.5 + 2^-28 ulp in f32, exact results exact.
// Errors: none. Threads: all functions are pure; rounding is to nearest, subnormals are on.
// Cost: in a loop compiled for AVX2 1.9 to 2.7 ns an element, Softplus 3.9
//   (tests/benchmark/elementary_bench).
#pragma once

#include "precision/elementary.h"
#include "precision/narrow_activation.h"
#include "precision/narrow_exp.h"
#include "precision/narrow_log.h"
#include "precision/narrow_trig.h"

namespace simgrad::precision::narrow {

// Atan2 for operands and a result in bf16. Where the angle is that of a ratio below 2^-60, it is
// closer to 0 than the ratio, by less than f64 tells. The ratio of two values of bf16 may be the
// middle between two subnormal ones; one ulp of f64 towards 0 decides.
SIMGRAD_FLAT inline double Atan2OfBf16(double y, double x) {
  const double angle = precision::Atan2(y, x);
  const double magnitude = internal::Magnitude(angle);
  const bool is_ratio = (magnitude < 0x1p-60) & (magnitude > 0.0);
  return DoubleOf(BitsOf(angle) - static_cast<uint64_t>(is_ratio));
}

}  // namespace simgrad::precision::narrow
