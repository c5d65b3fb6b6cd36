// Products for processors that take a hundred times as long where they meet a subnormal number.
//
// Maths: s is the smallest subnormal, p the bits of a mantissa. The smaller magnitude is m s with
//   m < 2^p an integer, where it is subnormal. Then a b rounded to a multiple of s is s times m b
//   rounded to an integer, and fma(m, |b|, 2^p) does that in one rounding, because from 2^p to
//   2^(p+1) numbers stand one apart. The bits above those of 2^p are the bits of the result, also
//   where it is the smallest normal number. Larger products are m |b| with its exponent lowered.
// Accuracy: the bits of a * b. Cost: some 30 operations, none of which meets a subnormal, but
//   where the other factor is above 2^64 (2^512 in f64). Errors: none. Threads: pure.
// Source: ADR 15.
#pragma once

#include <cstdint>

#include "precision/selection.h"

namespace simgrad::sim::compiled {

template <class C>
struct NearZero;
template <>
struct NearZero<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
};
template <>
struct NearZero<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
};

inline float FusedMultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double FusedMultiplyAdd(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Returns x. An optimiser that saw where a product is not used would put its factors back.
#if defined(__clang__)
extern "C" {
[[gnu::const]] float simgrad_kept_f32(float x);  // scalar_module.cc
[[gnu::const]] double simgrad_kept_f64(double x);
}
inline float Kept(float x) { return simgrad_kept_f32(x); }
inline double Kept(double x) { return simgrad_kept_f64(x); }
#else
template <class C>
inline C Kept(C x) {
  return x;
}
#endif

template <class C>
inline C ProductNearZero(C a, C b) {
  using Z = NearZero<C>;
  using Bits = typename Z::Bits;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(C) - 1);
  constexpr Bits kSmallestNormal = Bits{1} << Z::kMantissa;
  constexpr Bits kOnesBits = (Z::kBias + Z::kMantissa) << Z::kMantissa;  // of 2^p
  constexpr C kOnes = static_cast<C>(kSmallestNormal);
  // The bits that 1 / s adds to those of a normal number.
  constexpr Bits kUnits = (Z::kBias - 1 + Z::kMantissa) << Z::kMantissa;
  // From here on a factor is left to the processor: m times it might overflow.
  constexpr Bits kLarge = (Z::kBias + Z::kBias / 2) << Z::kMantissa;
  // Two normal numbers whose product may be subnormal have bits that add up to less.
  constexpr Bits kTinySum = (Z::kBias + 2) << Z::kMantissa;
  const auto number = [](Bits bits) { return __builtin_bit_cast(C, bits); };
  const Bits first = __builtin_bit_cast(Bits, a);
  const Bits second = __builtin_bit_cast(Bits, b);
  const Bits sign = (first ^ second) & kSign;
  const Bits x = first & ~kSign;
  const Bits y = second & ~kSign;
  const Bits smaller = x < y ? x : y;
  const Bits larger = x < y ? y : x;
  const bool is_subnormal = smaller < kSmallestNormal;
  const bool is_near = (is_subnormal | (smaller + larger < kTinySum)) & (larger < kLarge);
  const C units =
      is_subnormal ? number(smaller | kOnesBits) - kOnes : number(is_near ? smaller + kUnits : 0);
  // The product of two subnormal numbers is zero.
  const C factor = number((is_near & (larger >= kSmallestNormal)) ? larger : 0);
  const C whole = units * factor;
  const Bits tiny = __builtin_bit_cast(Bits, FusedMultiplyAdd(units, factor, kOnes)) - kOnesBits;
  const Bits normal = __builtin_bit_cast(Bits, whole) - kUnits;
  const Bits near = (whole < kOnes ? tiny : normal) | sign;
  const C far = Kept(is_near ? C{1} : a) * Kept(is_near ? C{1} : b);
  return is_near ? number(near) : far;
}

}  // namespace simgrad::sim::compiled
