// Branch-free rounding to nearest even for vector kernels: float to 16 and 8 bits, double to all.
//
// Maths: |x| is added to and taken from a power of two so large that the sum rounds at the quantum of
//   the format: 2^max(e, min_exponent) times 2^(P - p), with e the exponent of x, P and p the
//   precisions of carrier and format. A format with the exponents of its carrier is rounded in the
//   encoding, (|x| + half - 1 + lsb) with the tail cleared, which overflows to Inf by itself.
// Accuracy: the bits of RoundTo for every input, given round to nearest in the caller's thread
//   (precision/float_environment.h). One rounding from the carrier: a double goes to f16 directly.
// Errors: none; NaN becomes the canonical NaN of the carrier.
// Cost: 6 to 12 operations without a branch, which compilers turn into vector code.
// Threads: pure; host and device. Source: docs/numerics.md section 1.
#pragma once

#include "precision/format.h"
#include "precision/host_device.h"

namespace simgrad::precision {

// The bits of a carrier, float or double.
template <class C>
struct CarrierBits;
template <>
struct CarrierBits<float> {
  using Bits = uint32_t;
  static constexpr Format kFormat = Format::kF32;
  static constexpr Bits kMagnitude = 0x7FFFFFFFu;
  static constexpr Bits kInfinity = kFloatInfinityBits;
  static constexpr Bits kNan = kFloatNanBits;
  SIMGRAD_HD static constexpr float Of(Bits bits) { return FloatOf(bits); }
  SIMGRAD_HD static constexpr float PowerOfTwo(int e) { return FloatPowerOfTwo(e); }
};
template <>
struct CarrierBits<double> {
  using Bits = uint64_t;
  static constexpr Format kFormat = Format::kF64;
  static constexpr Bits kMagnitude = 0x7FFFFFFFFFFFFFFFu;
  static constexpr Bits kInfinity = kDoubleInfinityBits;
  static constexpr Bits kNan = kDoubleNanBits;
  SIMGRAD_HD static constexpr double Of(Bits bits) { return DoubleOf(bits); }
  SIMGRAD_HD static constexpr double PowerOfTwo(int e) { return DoublePowerOfTwo(e); }
};

// The value of F next to x; the carrier C holds every value of F.
template <Format F, class C>
SIMGRAD_HD inline C RoundInCarrier(C x, Overflow overflow) {
  using Carrier = CarrierBits<C>;
  using Bits = typename Carrier::Bits;
  constexpr FormatTraits kTraits = Traits(F);
  constexpr FormatTraits kWide = Traits(Carrier::kFormat);
  constexpr int kDrop = kWide.precision - kTraits.precision;
  static_assert(kDrop >= 0, "the carrier is narrower than the format");
  constexpr Bits kMax = BitsOf(static_cast<C>(kTraits.max_finite));
  const Bits bits = BitsOf(x);
  const Bits magnitude = bits & Carrier::kMagnitude;
  const Bits sign = bits ^ magnitude;
  const C absolute = Carrier::Of(magnitude);

  constexpr bool kOverflowsByItself = kTraits.min_exponent == kWide.min_exponent;
  constexpr Bits kTail = (Bits{1} << kDrop) - 1;
  C rounded = absolute;
  Bits last = kMax;  // the largest magnitude that does not overflow
  if constexpr (kDrop > 0) {
    if constexpr (kOverflowsByItself) {
      // The encoding is rounded with its sign, which only a NaN carries into.
      const Bits encoding = (bits + (kTail >> 1) + ((bits >> kDrop) & 1u)) & ~kTail;
      if (overflow == Overflow::kIeee) return Carrier::Of(x != x ? Carrier::kNan : encoding);
      rounded = Carrier::Of(encoding & Carrier::kMagnitude);
    } else {
      constexpr C kNormal = Carrier::PowerOfTwo(kTraits.min_exponent);
      const C power = Carrier::Of(bits & Carrier::kInfinity);
      const C shifter = (power > kNormal ? power : kNormal) * Carrier::PowerOfTwo(kDrop);
      rounded = (absolute + shifter) - shifter;
    }
    constexpr bool kTieGoesBeyond = ((kMax >> kDrop) & 1u) != 0;
    last = kMax + (kTail >> 1) + (kTieGoesBeyond ? 0 : 1);
  }
  bool is_nan = x != x;
  if (!kOverflowsByItself || overflow == Overflow::kSaturate) {
    const bool overflows = absolute > Carrier::Of(last);
    const bool saturates = overflow == Overflow::kSaturate;
    rounded = overflows ? Carrier::Of(saturates ? kMax : Carrier::kInfinity) : rounded;
    if (!kTraits.has_infinity) is_nan = is_nan | (overflows & !saturates);
  }
  return Carrier::Of(is_nan ? Carrier::kNan : (BitsOf(rounded) | sign));
}

// The carrier float holds every value of f32, bf16, f16, e4m3 and e5m2; F names one of them.
template <Format F>
SIMGRAD_HD inline float RoundFloat(float x, Overflow overflow = Overflow::kIeee) {
  return RoundInCarrier<F>(x, overflow);
}

// The same from a double; the result is a double that holds a value of F.
template <Format F>
SIMGRAD_HD inline double RoundDouble(double x, Overflow overflow = Overflow::kIeee) {
  return RoundInCarrier<F>(x, overflow);
}

}  // namespace simgrad::precision
