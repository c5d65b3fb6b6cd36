// Products for processors that take a hundred times as long where they meet a subnormal number.
//
// Maths: s is the smallest subnormal, p the bits of a mantissa. The smaller magnitude is m s, so the product
//   is m |b| s. Rounded to a multiple of s it is s times m |b| rounded to an integer, and fma(m, |b|, 2^p)
//   does that in one rounding, because from 2^p to 2^(p+1) numbers stand one apart. The bits above those of
//   2^p are the bits of the result, also where it is the smallest normal number. Larger products are m |b|
//   with its exponent lowered. Only a magnitude below the square root of the smallest normal number can be
//   the smaller factor of a subnormal product; other factors are multiplied as they are.
// Accuracy: the bits of a * b; a NaN for a NaN. Cost: some 20 operations, none of which meets a subnormal, but
//   where the other factor is from 2^41 on (2^460 in f64). Errors: none. Threads: pure.
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
  // The bits of the square root of the smallest normal number.
  constexpr Bits kSmall = ((Z::kBias + 1) / 2) << Z::kMantissa;
  // From here on m times the other factor might overflow.
  constexpr Bits kLarge = 3 * (Z::kBias << Z::kMantissa) - kSmall - kUnits;
  const auto number = [](Bits bits) { return __builtin_bit_cast(C, bits); };
  const auto bits_of = [](C value) { return __builtin_bit_cast(Bits, value); };
  const Bits sign = (bits_of(a) ^ bits_of(b)) & kSign;
  const Bits x = bits_of(a) & ~kSign;
  const Bits y = bits_of(b) & ~kSign;
  const Bits smaller = x < y ? x : y;
  const Bits larger = x < y ? y : x;
  const bool is_near = (smaller < kSmall) & (larger < kLarge);
  const C of_subnormal = number(smaller | kOnesBits) - kOnes;
  const C of_normal = number(smaller + kUnits);
  const C units = smaller < kSmallestNormal ? of_subnormal : of_normal;
  const C factor = Kept(is_near ? units : number(smaller));
  // The product of two subnormal numbers is zero, as that of one with the smallest normal number.
  const C other = number(larger < kSmallestNormal ? kSmallestNormal : larger);
  const C whole = factor * other;
  const Bits tiny = bits_of(FusedMultiplyAdd(factor, other, kOnes)) - kOnesBits;
  const Bits near = whole < kOnes ? tiny : bits_of(whole) - kUnits;
  return number((is_near ? near : bits_of(whole)) | sign);
}

}  // namespace simgrad::sim::compiled
