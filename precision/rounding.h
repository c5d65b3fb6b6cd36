// Conversion of one value to a format: the rounding itself, and the encodings.
//
// Maths: RoundTo rounds the exact source value to the multiple of the format's quantum
//   2^max(e - p + 1, emin), 2^e <= |x| < 2^(e+1), and then tests the range (round first, also for
//   FP8). Subnormals are honoured, never flushed.
// Accuracy: correctly rounded. NaN becomes the canonical quiet NaN; zeros keep their sign. Overflow
//   under kIeee is Inf (NaN for e4m3) in every rounding, toward zero included: toward zero a value
//   overflows when its truncation lies beyond the largest finite one.
// Errors: none. Threads: pure; integer operations only, so neither the rounding mode nor flush to
//   zero of the caller matters. Cost: about 30 integer operations; vector kernels use
//   precision/lane_rounding.h instead.
// Source: docs/numerics.md section 1.
#pragma once

#include "precision/format.h"
#include "precision/host_device.h"

namespace simgrad::precision {
namespace internal {

// Whether a significand m, of which the low `shift` >= 1 bits are discarded, goes up in magnitude.
SIMGRAD_HD constexpr bool RoundsUp(CastRounding rounding, uint64_t m, int shift,
                                   uint32_t random_bits) {
  // m < 2^53: a value below a quarter of the quantum rounds like one far below it.
  const uint64_t half = shift <= 60 ? uint64_t{1} << (shift - 1) : ~uint64_t{0};
  const uint64_t rest = shift <= 60 ? m & (2 * half - 1) : m;
  const bool odd = shift <= 60 && ((m >> shift) & 1) != 0;
  switch (rounding) {
    case CastRounding::kNearestEven:
      return rest > half || (rest == half && odd);
    case CastRounding::kNearestAway:
      return rest >= half;
    case CastRounding::kTowardZero:
      return false;
    case CastRounding::kStochastic:
      break;
  }
  // The discarded fraction rest / 2^shift, truncated to 32 bits.
  uint64_t fraction = 0;
  if (shift <= 32) {
    fraction = rest << (32 - shift);
  } else if (shift < 96) {
    fraction = rest >> (shift - 32);
  }
  return random_bits < fraction;
}

// The encoding of a magnitude beyond the range, infinity included.
SIMGRAD_HD constexpr uint64_t OverflowBits(const FormatTraits& traits, Overflow overflow,
                                           uint64_t sign) {
  if (overflow == Overflow::kSaturate) return sign | BitsOf(traits.max_finite);
  return traits.has_infinity ? sign | kDoubleInfinityBits : kDoubleNanBits;
}

}  // namespace internal

// The value of `format` that x rounds to, as a double. `random_bits` matter to kStochastic alone:
// up if and only if they are less than the discarded fraction truncated to 32 bits.
SIMGRAD_HD constexpr double RoundTo(Format format, double x, Overflow overflow = Overflow::kIeee,
                                    CastRounding rounding = CastRounding::kNearestEven,
                                    uint32_t random_bits = 0) {
  const FormatTraits traits = Traits(format);
  const uint64_t bits = BitsOf(x);
  const uint64_t sign = bits & (uint64_t{1} << 63);
  const uint64_t magnitude = bits ^ sign;
  if (magnitude > kDoubleInfinityBits) return DoubleOf(kDoubleNanBits);
  if (magnitude == kDoubleInfinityBits) {
    return DoubleOf(internal::OverflowBits(traits, overflow, sign));
  }
  if (magnitude == 0 || format == Format::kF64) return x;

  // |x| = m * 2^unit, with the hidden bit in m; a subnormal double needs no normalisation, because
  // it lies far below the smallest subnormal of every other format.
  const int field = static_cast<int>(magnitude >> 52);
  const int unit = (field == 0 ? 1 : field) - 1075;
  const uint64_t hidden = field == 0 ? 0 : uint64_t{1} << 52;
  const uint64_t m = (magnitude & ((uint64_t{1} << 52) - 1)) | hidden;
  const int by_precision = field - 1023 - (traits.precision - 1);
  const int quantum = by_precision > traits.emin ? by_precision : traits.emin;
  const int shift = quantum - unit;
  const bool up = internal::RoundsUp(rounding, m, shift, random_bits);
  if (shift >= 53) return DoubleOf(sign | (up ? BitsOf(DoublePowerOfTwo(quantum)) : 0));

  // A carry out of the significand moves into the exponent field, which is what it should do.
  const uint64_t kept = magnitude >> shift << shift;
  const uint64_t rounded = kept + (up ? uint64_t{1} << shift : 0);
  if (rounded > BitsOf(traits.max_finite)) {
    return DoubleOf(internal::OverflowBits(traits, overflow, sign));
  }
  return DoubleOf(sign | rounded);
}

// The encoding of x, a value of `format` (as RoundTo returns it), in the low bits. Every NaN, and
// an infinity where the format has none, gets the canonical NaN.
SIMGRAD_HD constexpr uint64_t Encode(Format format, double x) {
  const FormatTraits traits = Traits(format);
  const uint64_t bits = BitsOf(x);
  const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
  const bool no_code = magnitude == kDoubleInfinityBits && !traits.has_infinity;
  if (magnitude > kDoubleInfinityBits || no_code) return traits.canonical_nan;
  if (format == Format::kF64) return bits;
  const uint64_t sign = bits >> 63 << (traits.bits - 1);
  const int mantissa_bits = traits.precision - 1;
  if (magnitude == kDoubleInfinityBits) {
    return sign | ((uint64_t{1} << (traits.bits - 1)) - (uint64_t{1} << mantissa_bits));
  }
  if (magnitude == 0) return sign;
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  const uint64_t m = (magnitude & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  if (exponent < traits.min_exponent) return sign | (m >> (52 + traits.emin - exponent));
  // The hidden bit adds one to the exponent field, hence bias - 1.
  const uint64_t field = static_cast<uint64_t>(exponent + traits.bias - 1) << mantissa_bits;
  return sign | (field + (m >> (52 - mantissa_bits)));
}

// The value of an encoding; NaN for every NaN. Bits above the format's width are ignored.
SIMGRAD_HD constexpr double Decode(Format format, uint64_t encoding) {
  const FormatTraits traits = Traits(format);
  if (format == Format::kF64) return RoundTo(format, DoubleOf(encoding));
  const int mantissa_bits = traits.precision - 1;
  const uint64_t sign = ((encoding >> (traits.bits - 1)) & 1) << 63;
  const uint64_t mantissa = encoding & ((uint64_t{1} << mantissa_bits) - 1);
  const uint64_t all_ones = (uint64_t{1} << (traits.bits - 1 - mantissa_bits)) - 1;
  const uint64_t field = (encoding >> mantissa_bits) & all_ones;
  if (field == all_ones) {
    if (traits.has_infinity && mantissa == 0) return DoubleOf(sign | kDoubleInfinityBits);
    // e4m3 keeps its top binade for numbers, but for the last code.
    const bool is_nan = traits.has_infinity || mantissa == (uint64_t{1} << mantissa_bits) - 1;
    if (is_nan) return DoubleOf(kDoubleNanBits);
  }
  // mantissa < 2^23, so this product with a power of two of the double range is exact and normal.
  const uint64_t hidden = field == 0 ? 0 : uint64_t{1} << mantissa_bits;
  const int unit = (field == 0 ? 1 : static_cast<int>(field)) - traits.bias - mantissa_bits;
  const double value = static_cast<double>(mantissa | hidden) * DoublePowerOfTwo(unit);
  return DoubleOf(sign | BitsOf(value));
}

}  // namespace simgrad::precision
