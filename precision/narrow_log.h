// Log and Log1p for f32 and narrower: one evaluation in f64, to be rounded once.
//
// Maths: x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); s = f/(2 + f);
//   log(1 + f) = f - (f^2/2 - s (f^2/2 + R)), R = s^2 P(s^2), with P the minimax polynomial of degree
//   6 (error 2^-59 of the logarithm).
// Units: x is a value of f32 (bf16 and f16 are among them), as a double; so is the result.
// Accuracy: relative error below 2^-51 (measured 2^-51.9), most of it the ulp that rounding to odd
//   may add. f is exact and f^2/2 nearly so; s (f^2/2 + R) is below f^2/2, so its four roundings and
//   those of the sums stay below 2^-54 of the result before that.
//   Rounded once, the result is correct for every f32, whether multiply-adds are fused or not (ADR
//   0030, ADR 0080).
// Errors: none; Log(±0) is -Inf, negative x gives the canonical NaN.
// Cost: 40 operations, 33 where multiply-adds are fused, one of them a division; no table, no branch.
//   Threads: pure; host and device. Source: the form of fdlibm's e_log.c.
#pragma once

#include "precision/multiply_add.h"

namespace simgrad::precision::narrow {

// e ln2 + log(1 + f), for 1 + f in [sqrt(1/2), sqrt(2)] and integers |e| <= 1100. An error of f is
// one of the same size in the result. hi is the result in f64, lo what its rounding left.
SIMGRAD_FLAT constexpr internal::DoubleDouble LogOfParts(double e, double f) {
  using internal::MultiplyAdd;
  constexpr double kLn2High = 0x1.62e42fefa38p-1;   // ln2, a multiple of 2^-42
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;  // ln2 - kLn2High
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  double odd = MultiplyAdd(w, 0x1.39a02e830eeeep-3, 0x1.c71c51c647b98p-3);
  odd = MultiplyAdd(w, odd, 0x1.999999997f8a0p-2);
  double even = MultiplyAdd(w, 0x1.2f15be6c4599ep-3, 0x1.74664d7beec58p-3);
  even = MultiplyAdd(w, even, 0x1.249249423e955p-2);
  even = MultiplyAdd(w, even, 0x1.5555555555593p-1);
  const double half_square = 0.5 * f * f;
  const double half_square_r = MultiplyAdd(z, MultiplyAdd(z, odd, even), half_square);
  const double tail = half_square - MultiplyAdd(s, half_square_r, e * kLn2Low);
  const internal::DoubleDouble head = internal::FastTwoSum(e * kLn2High, f);
  const double log = head.hi - tail;
  return {log, ((head.hi - log) - tail) + head.lo};
}

// hi + lo rounded to odd, so that the rounding to f32 that follows knows on which side of the
// middle of two values the sum lies. lo is not zero unless the sum is, or does not matter.
SIMGRAD_FLAT constexpr double RoundToOdd(internal::DoubleDouble sum) {
  const uint64_t bits = BitsOf(sum.hi);
  const uint64_t step = (uint64_t{0} - ((bits ^ BitsOf(sum.lo)) >> 63)) | 1;
  return DoubleOf(bits + (step & ((bits & 1) - 1)));
}

// u = 2^e (1 + f) for a normal u > 0.
struct LogParts {
  double e;
  double f;
};

SIMGRAD_FLAT constexpr LogParts SplitLog(double u) {
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDu;
  constexpr uint64_t kMantissa = 0x000FFFFFFFFFFFFFu;
  const uint64_t shifted = BitsOf(u) + (BitsOf(1.0) - kRootOfHalf);
  const double m = DoubleOf((shifted & kMantissa) + kRootOfHalf);
  const double biased = DoubleOf((shifted >> 52) | BitsOf(0x1p+52));
  return {biased - (0x1p+52 + 1023.0), m - 1.0};
}

SIMGRAD_FLAT constexpr double Log(double x) {
  const LogParts parts = SplitLog(x);
  const double log = RoundToOdd(LogOfParts(parts.e, parts.f));
  const double finite_or_infinite = internal::Select(x < internal::Infinity(), log, x);
  const double or_pole = internal::Select(x == 0.0, -internal::Infinity(), finite_or_infinite);
  return internal::Select(x >= 0.0, or_pole, internal::QuietNan());
}

// log(1 + x), of the sign of x also where it is zero. Log1p(-1) is -Inf, x < -1 gives NaN.
SIMGRAD_FLAT constexpr double Log1p(double x) {
  const LogParts parts = SplitLog(1.0 + x);
  // If e is 0, 1 + x may have been rounded, and f is x itself.
  const double f = internal::Select(parts.e == 0.0, x, parts.f);
  const double log = RoundToOdd(LogOfParts(parts.e, f));
  const double with_sign = DoubleOf(BitsOf(log) | (BitsOf(x) & internal::kSignBit));
  const double finite_or_infinite = internal::Select(x < internal::Infinity(), with_sign, x);
  const double or_pole = internal::Select(x == -1.0, -internal::Infinity(), finite_or_infinite);
  return internal::Select(x >= -1.0, or_pole, internal::QuietNan());
}

}  // namespace simgrad::precision::narrow
