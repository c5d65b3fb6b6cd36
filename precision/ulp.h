// The unit in the last place, and how far a tested value lies from its threshold.
//
// Maths: Ulp(t) = 2^(e-p+1) for 2^e <= |t| < 2^(e+1), at least the smallest subnormal 2^emin. The
//   margin of a test a op b is a - b in f64; in ulps: divided by Ulp at the largest of |a|, |b| and
//   `extra_magnitude`, the largest magnitude of the operands where a or b was produced by add,
//   subtract or fma (0 otherwise).
// Units: `absolute` has the unit of a, `ulps` that of the comparison's format.
// Accuracy: exact, but for the one rounding of a - b in f64; the division is by a power of two.
//   Infinite magnitudes have the ulp of the largest finite value; a NaN among a and b gives NaN
//   margins, which diagnostics count apart.
// Errors: none. Cost: no branch, for vector kernels too. Threads: pure; host and device; needs the
//   float environment of precision/float_environment.h.
// Source: docs/numerics.md section 7.
#pragma once

#include "precision/format.h"
#include "precision/host_device.h"
#include "precision/selection.h"

namespace simgrad::precision {

SIMGRAD_HD inline double Ulp(Format format, double magnitude) {
  const FormatTraits traits = Traits(format);
  if (magnitude != magnitude) return DoubleOf(kDoubleNanBits);
  const uint64_t field = BitsOf(magnitude) & kDoubleInfinityBits;
  // 2^e, or 0 for a subnormal double, which has the smallest ulp; for Inf the top binade.
  const uint64_t top = BitsOf(traits.max_finite) & kDoubleInfinityBits;
  const double power = DoubleOf(field == kDoubleInfinityBits ? top : field);
  // f64's smallest subnormal is no normal double, so it is built from its bits.
  const double smallest = format == Format::kF64 ? DoubleOf(1) : DoublePowerOfTwo(traits.emin);
  const double scaled = power * DoublePowerOfTwo(1 - traits.precision);
  return scaled > smallest ? scaled : smallest;
}

struct Margin {
  double absolute;
  double ulps;
};

// a - b of integers, rounded to f64 once; an ulp of integers is 1.
SIMGRAD_HD inline double IntegerMargin(int64_t a, int64_t b) {
  // The differences of the upper and of the lower 32 bits are exact.
  constexpr int64_t kLower = 0xFFFFFFFF;
  const double upper = static_cast<double>(a >> 32) - static_cast<double>(b >> 32);
  const double lower = static_cast<double>(a & kLower) - static_cast<double>(b & kLower);
  return upper * 0x1p32 + lower;
}

SIMGRAD_HD inline Margin MarginOf(Format comparison, double a, double b,
                                  double extra_magnitude = 0.0) {
  const double absolute = Canonical(a - b);
  const double magnitude = Max(Max(Abs(a), Abs(b)), Abs(extra_magnitude));
  return {absolute, Canonical(absolute / Ulp(comparison, magnitude))};
}

}  // namespace simgrad::precision
