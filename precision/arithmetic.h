// The operations of every arithmetic format, correctly rounded, one value at a time.
//
// Maths: the exact result rounded once to nearest even in `format`. f64 is computed directly. The
//   others are computed in double and rounded once more, which is the same for nearest by Roux's
//   conditions: multiply p' >= 2p, emin' <= 2 emin; divide p' >= 2p, emin' <= emin - p - 2; sqrt
//   p' >= 2p + 2; p' = 53 and emin' = -1074 meet them for f32 and narrower. Add, Sub and Fma go
//   through round to odd, so that Add and Sub are right also for operands wider than `format`
//   (a narrow accumulator), and Fma, which no such condition covers, is right at all.
// Accuracy: 0.5 ulp, subnormals included; NaN results are the canonical NaN.
// Errors: none; IEEE 754 results for zero divisors, Inf and NaN; overflow is Inf (NaN for e4m3).
// Threads: pure; host and device; needs the float environment of precision/float_environment.h.
// Source: docs/numerics.md section 2; P. Roux, "Innocuous double rounding of basic arithmetic
//   operations", Journal of Formalized Reasoning 7(1), 2014; precision/round_to_odd.h.
#pragma once

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

#include "precision/round_to_odd.h"
#include "precision/rounding.h"
#include "precision/selection.h"

namespace simgrad::precision {

SIMGRAD_HD inline double Add(Format format, double a, double b) {
  return RoundTo(format, format == Format::kF64 ? a + b : AddToOdd(a, b));
}

SIMGRAD_HD inline double Sub(Format format, double a, double b) {
  return RoundTo(format, format == Format::kF64 ? a - b : AddToOdd(a, -b));
}

SIMGRAD_HD inline double Mul(Format format, double a, double b) { return RoundTo(format, a * b); }

SIMGRAD_HD inline double Div(Format format, double a, double b) { return RoundTo(format, a / b); }

SIMGRAD_HD inline double Sqrt(Format format, double a) { return RoundTo(format, ::sqrt(a)); }

// a * b + c. In f32 and narrower the product of two values is exact in double (at most 48 bits, at
// least 2^-298), so rounding the sum to odd leaves one rounding.
SIMGRAD_HD inline double Fma(Format format, double a, double b, double c) {
  return RoundTo(format, format == Format::kF64 ? ::fma(a, b, c) : AddToOdd(a * b, c));
}

// The floored remainder a - b * floor(a / b) without its cancellation: r = fmod(a, b), which is
// exact; a zero r takes the sign of b; where r and b differ in sign, r + b, rounded once. So the
// result has the sign of b and |result| <= |b|, with equality where r + b rounds up to b (a tiny
// negative a). b = 0 or infinite a: NaN; infinite b: a, or b where the signs differ.
SIMGRAD_HD inline double Mod(Format format, double a, double b) {
  const double r = ::fmod(a, b);
  const bool b_negative = (BitsOf(b) >> 63) != 0;
  if (r == 0.0) return b_negative ? -0.0 : 0.0;
  if ((r < 0.0) == b_negative) return RoundTo(format, r);
  return Add(format, r, b);
}

// The remainder a - b trunc(a / b), which is exact; it has the sign of a. b = 0 or infinite a: NaN;
// infinite b: a.
SIMGRAD_HD inline double Rem(double a, double b) { return Canonical(::fmod(a, b)); }

// Whether FmodOfModerate(a, b) is fmod(a, b): both finite, b no zero, and |a / b| below a bound.
template <Format F>
SIMGRAD_HD inline bool IsModerateQuotient(double a, double b) {
  constexpr double kBelow = F == Format::kF64 ? 0x1p52 : 0x1p28;
  return Abs(a) < kBelow * Abs(b) && Abs(b) < DoubleOf(kDoubleInfinityBits);
}

// fmod in straight code. With q the rounded quotient of magnitudes without its fraction:
// f32 and narrower: a quotient below an integer n <= 2^28 is at most n - 2^-24, because n b - a is at
//   least 2^-24 b. So its 53 bits stay below n, and q is right. q b has at most 28 + 24 bits, and
//   a - q b, a multiple of a last place and less than b, is exact.
// f64: a / b may round up to n. Then a - n b, exact as it is small, is the remainder less b.
template <Format F>
SIMGRAD_HD inline double FmodOfModerate(double a, double b) {
  const double x = Abs(a), y = Abs(b);
  const double q = Floor(x / y);
  double r = F == Format::kF64 ? ::fma(-q, y, x) : x - q * y;
  if (F == Format::kF64 && r < 0.0) r += y;
  return DoubleOf(BitsOf(r) | (BitsOf(a) & (uint64_t{1} << 63)));
}

// a / b rounded to the format, without its fraction.
SIMGRAD_HD inline double Quot(Format format, double a, double b) {
  return Trunc(Div(format, a, b));
}

}  // namespace simgrad::precision
