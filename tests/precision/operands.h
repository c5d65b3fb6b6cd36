// Operands for the precision tests: the corners of a format, and random values of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "precision/rounding.h"
#include "tests/environment.h"

namespace simgrad::precision {

inline constexpr Format kAllFormats[] = {Format::kF64, Format::kF32,  Format::kBf16,
                                         Format::kF16, Format::kE4m3, Format::kE5m2};
inline constexpr Format kArithmeticFormats[] = {Format::kF64, Format::kF32, Format::kBf16,
                                                Format::kF16};
inline constexpr Format kShortFormats[] = {Format::kBf16, Format::kF16, Format::kE4m3,
                                           Format::kE5m2};

// Sweeps take one of so many arguments. Sanitizers run ten times slower, and see what they look for
// in any of them.
#ifdef SIMGRAD_SANITIZED
inline constexpr int kSweepShare = 64;
inline constexpr int kShortSweepShare = 61;  // of all numbers of 16 bits
#else
inline constexpr int kSweepShare = 1;
inline constexpr int kShortSweepShare = 1;
#endif

// Equal to the bit, where every NaN must be the canonical one.
inline bool SameBits(double actual, double expected) {
  const uint64_t want = expected != expected ? kDoubleNanBits : BitsOf(expected);
  return BitsOf(actual) == want;
}
inline bool SameBits(float actual, double expected) {
  const uint32_t want = expected != expected ? kFloatNanBits : BitsOf(static_cast<float>(expected));
  return BitsOf(actual) == want;
}

// Zero, subnormals, the neighbours of powers of two, the largest values, Inf, NaN; both signs.
inline std::vector<double> Corners(Format format) {
  const FormatTraits traits = Traits(format);
  const double smallest = std::ldexp(1.0, traits.emin);
  const double normal = std::ldexp(1.0, traits.min_exponent);
  const double epsilon = std::ldexp(1.0, 1 - traits.precision);
  const double top = std::ldexp(1.0, std::ilogb(traits.max_finite));
  std::vector<double> magnitudes = {0.0,
                                    smallest,
                                    2 * smallest,
                                    3 * smallest,
                                    normal - smallest,
                                    normal,
                                    normal + smallest,
                                    2 * normal,
                                    epsilon / 2,
                                    epsilon,
                                    0.5,
                                    1 - epsilon / 2,
                                    1.0,
                                    1 + epsilon,
                                    1.5,
                                    2 - epsilon,
                                    2.0,
                                    3.0,
                                    2 + 2 * epsilon,
                                    1 / epsilon,
                                    top,
                                    traits.max_finite,
                                    traits.max_finite - top * epsilon};
  if (traits.has_infinity) magnitudes.push_back(std::numeric_limits<double>::infinity());
  std::vector<double> corners;
  for (const double magnitude : magnitudes) {
    const double value = RoundTo(format, magnitude);
    corners.push_back(value);
    corners.push_back(-value);
  }
  corners.push_back(std::numeric_limits<double>::quiet_NaN());
  return corners;
}

// Random values of a format: uniform over encodings, or near another value in exponent, where sums
// and differences round and cancel.
class RandomOperands {
 public:
  RandomOperands(Format format, uint64_t seed)
      : format_(format), traits_(Traits(format)), random_(seed) {}

  double Any() { return Decode(format_, random_()); }

  double Near(double other) {
    if (!(std::abs(other) <= traits_.max_finite) || other == 0.0) return Any();
    const int spread = 2 * (traits_.precision + 2);
    const int shift = static_cast<int>(random_() % static_cast<uint64_t>(2 * spread)) - spread;
    const double significand = 1.0 + static_cast<double>(random_() >> 12) * 0x1p-52;
    const double sign = (random_() & 1) != 0 ? -1.0 : 1.0;
    return RoundTo(format_, sign * std::ldexp(significand, std::ilogb(other) + shift));
  }

  uint64_t Bits() { return random_(); }

 private:
  Format format_;
  FormatTraits traits_;
  std::mt19937_64 random_;
};

// GoogleTest prints a format by its name.
inline void PrintTo(Format format, std::ostream* stream) { *stream << FormatName(format); }

}  // namespace simgrad::precision
