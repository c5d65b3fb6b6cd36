// The neighbour of a number in its format.
//
// Maths: NextAfter(a, b) is the value of the format next to a on the side of b, and b where they are
//   equal; from zero it is the smallest subnormal number, beyond the largest finite one infinity.
// Accuracy: exact; a and b are values of the format. A NaN gives the canonical NaN.
// Errors: none. Threads: pure; host and device.
// Source: docs/numerics.md section 2; nextafter of Annex F of C.
#pragma once

#include "precision/format.h"
#include "precision/rounding.h"
#include "precision/ulp.h"

namespace simgrad::precision {

SIMGRAD_HD inline double NextAfter(Format format, double a, double b) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  if ((a != a) | (b != b)) return DoubleOf(kDoubleNanBits);
  if (a == b) return b;
  const FormatTraits traits = Traits(format);
  const bool is_f64 = format == Format::kF64;
  const double smallest = is_f64 ? DoubleOf(1) : DoublePowerOfTwo(traits.emin);
  if (a == 0.0) return b > 0.0 ? smallest : -smallest;
  const uint64_t sign = BitsOf(a) & kSign;
  const double magnitude = DoubleOf(BitsOf(a) ^ sign);
  const bool grows = (b > a) == (a > 0.0);
  double next = 0.0;
  if (magnitude > traits.max_finite) {
    next = traits.max_finite;
  } else if (is_f64) {
    next = DoubleOf(BitsOf(magnitude) + (grows ? uint64_t{1} : ~uint64_t{0}));
  } else if (grows) {
    next = RoundTo(format, magnitude + Ulp(format, magnitude));
  } else {
    // Below a power of two the numbers are twice as close.
    const bool is_power = (BitsOf(magnitude) & 0xFFFFFFFFFFFFFu) == 0;
    const double half = 0.5 * Ulp(format, magnitude);
    next = magnitude - ((is_power & (half >= smallest)) ? half : Ulp(format, magnitude));
  }
  return DoubleOf(BitsOf(next) | sign);
}

}  // namespace simgrad::precision
