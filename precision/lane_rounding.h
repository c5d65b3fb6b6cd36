// Branch-free rounding to nearest even for vector kernels: float to 16 and 8 bits, double to all.
//
// Maths: a normal result is rounded in the encoding, (a + half - 1 + lsb) with the tail cleared; a
//   subnormal one by adding and subtracting 2^(emin + P - 1), P the carrier's precision, whose ulp
//   is the quantum 2^emin.
// Accuracy: the bits of RoundTo for every input, given round to nearest in the caller's thread
//   (precision/float_environment.h). One rounding from the carrier: a double goes to f16 directly.
// Errors: none; NaN becomes the canonical NaN of the carrier.
// Cost: 10 to 15 operations without a branch, which compilers turn into vector code.
// Threads: pure; host and device. Source: docs/numerics.md section 1.
#pragma once

#include "precision/format.h"
#include "precision/host_device.h"

namespace simgrad::precision {

// The carrier float holds every value of f32, bf16, f16, e4m3 and e5m2; F names one of them.
template <Format F>
SIMGRAD_HD inline float RoundFloat(float x, Overflow overflow = Overflow::kIeee) {
  constexpr FormatTraits kTraits = Traits(F);
  static_assert(F != Format::kF64, "a float does not carry f64");
  constexpr int kDrop = 24 - kTraits.precision;
  constexpr uint32_t kTail = (uint32_t{1} << kDrop) - 1;
  constexpr uint32_t kMax = BitsOf(static_cast<float>(kTraits.max_finite));
  const uint32_t bits = BitsOf(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits ^ magnitude;
  uint32_t rounded = magnitude;
  if constexpr (kDrop > 0) {
    rounded = (magnitude + (kTail >> 1) + ((magnitude >> kDrop) & 1u)) & ~kTail;
  }
  if constexpr (kTraits.min_exponent > -126) {
    constexpr float kShifter = FloatPowerOfTwo(kTraits.emin + 23);
    const float absolute = FloatOf(magnitude);
    const uint32_t subnormal = BitsOf((absolute + kShifter) - kShifter);
    rounded = absolute < FloatPowerOfTwo(kTraits.min_exponent) ? subnormal : rounded;
  }
  const uint32_t beyond = overflow == Overflow::kSaturate ? kMax
                          : kTraits.has_infinity          ? kFloatInfinityBits
                                                          : kFloatNanBits;
  // Signed comparisons exist in every vector instruction set; a NaN that wraps is replaced below.
  rounded = static_cast<int32_t>(rounded) > static_cast<int32_t>(kMax) ? beyond : rounded;
  const bool is_nan = static_cast<int32_t>(magnitude) > static_cast<int32_t>(kFloatInfinityBits);
  const bool no_sign = is_nan | (rounded == kFloatNanBits);
  return FloatOf(no_sign ? kFloatNanBits : (rounded | sign));
}

// The same from a double; the result is a double that holds a value of F.
template <Format F>
SIMGRAD_HD inline double RoundDouble(double x, Overflow overflow = Overflow::kIeee) {
  constexpr FormatTraits kTraits = Traits(F);
  constexpr int kDrop = 53 - kTraits.precision;
  constexpr uint64_t kTail = (uint64_t{1} << kDrop) - 1;
  const uint64_t bits = BitsOf(x);
  const uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFu;
  const uint64_t sign = bits ^ magnitude;
  const double absolute = DoubleOf(magnitude);
  double rounded = absolute;
  if constexpr (kDrop > 0) {
    constexpr double kShifter = DoublePowerOfTwo(kTraits.emin + 52);
    const uint64_t normal = (magnitude + (kTail >> 1) + ((magnitude >> kDrop) & 1u)) & ~kTail;
    const double subnormal = (absolute + kShifter) - kShifter;
    rounded = absolute < DoublePowerOfTwo(kTraits.min_exponent) ? subnormal : DoubleOf(normal);
  }
  const uint64_t beyond = overflow == Overflow::kSaturate ? BitsOf(kTraits.max_finite)
                          : kTraits.has_infinity          ? kDoubleInfinityBits
                                                          : kDoubleNanBits;
  const uint64_t ranged = rounded > kTraits.max_finite ? beyond : BitsOf(rounded);
  const uint64_t result = ranged == kDoubleNanBits ? kDoubleNanBits : (ranged | sign);
  return x != x ? DoubleOf(kDoubleNanBits) : DoubleOf(result);
}

SIMGRAD_HD inline float RoundToBf16(float x) { return RoundFloat<Format::kBf16>(x); }
SIMGRAD_HD inline float RoundToF16(float x) { return RoundFloat<Format::kF16>(x); }
SIMGRAD_HD inline float RoundToE4m3(float x, Overflow overflow) {
  return RoundFloat<Format::kE4m3>(x, overflow);
}
SIMGRAD_HD inline float RoundToE5m2(float x, Overflow overflow) {
  return RoundFloat<Format::kE5m2>(x, overflow);
}

}  // namespace simgrad::precision
