// Operations that need no rounding: minimum, maximum, relu, sign, abs, neg, floor, ceil, trunc and
// round.
//
// Maths: Max and Min are maximum and minimum of IEEE 754-2019: NaN propagates, -0 < +0. Round goes
//   to the nearest integer, ties to even.
// Accuracy: exact; the result is a value of the operands' format, whichever that is. A NaN result
//   is the canonical NaN of the carrier, but of Abs, Neg, Min, Relu, AtLeast and AtMost, and on a GPU of
//   Max: they leave its bits open, as arithmetic does. Zero results of Floor, Ceil, Trunc and Round keep the
//   operand's sign; Sign of either zero is +0.
// Errors: none. Cost: a few operations without a branch, for vector kernels too.
// Threads: pure; host and device; Floor and Round need round to nearest in the caller's thread.
// Source: docs/numerics.md section 2; IEEE 754-2019 section 9.6.
#pragma once

#include "precision/host_device.h"

namespace simgrad::precision {

SIMGRAD_HD inline float Canonical(float x) { return x != x ? FloatOf(kFloatNanBits) : x; }
SIMGRAD_HD inline double Canonical(double x) { return x != x ? DoubleOf(kDoubleNanBits) : x; }

SIMGRAD_HD inline bool IsFinite(float x) { return (BitsOf(x) & 0x7FFFFFFFu) < kFloatInfinityBits; }
SIMGRAD_HD inline bool IsFinite(double x) {
  return (BitsOf(x) & 0x7FFFFFFFFFFFFFFFu) < kDoubleInfinityBits;
}

// From compute capability 8.0 on one instruction each: PTX ISA 8.0, "max": NaN with .NaN, -0 < +0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ inline float Max(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ inline float Min(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
#else
// Each choice is one instruction, but for zeros and NaN. The choices of Max differ only in the sign of
// zeros, and are joined by and.
SIMGRAD_HD inline float Max(float a, float b) {
  const float ordered = FloatOf(BitsOf(a > b ? a : b) & BitsOf(b > a ? b : a));
  return ((a != a) | (b != b)) ? FloatOf(kFloatNanBits) : ordered;
}
SIMGRAD_HD inline float Min(float a, float b) {
  const float smaller = a < b ? a : b;
  // The bits of both: of equal numbers one of them, -0 where one is, NaN where one is.
  return !((a < b) | (a > b)) ? FloatOf(BitsOf(a) | BitsOf(b)) : smaller;
}
#endif

SIMGRAD_HD inline double Max(double a, double b) {
  const double ordered = DoubleOf(BitsOf(a > b ? a : b) & BitsOf(b > a ? b : a));
  return ((a != a) | (b != b)) ? DoubleOf(kDoubleNanBits) : ordered;
}
SIMGRAD_HD inline double Min(double a, double b) {
  const double smaller = a < b ? a : b;
  // The bits of both: of equal numbers one of them, -0 where one is, NaN where one is.
  return !((a < b) | (a > b)) ? DoubleOf(BitsOf(a) | BitsOf(b)) : smaller;
}

// Max(x, +0).
SIMGRAD_HD inline float Relu(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return Max(x, 0.0f);
#else
  const float positive = x > 0.0f ? x : 0.0f;
  return x != x ? x : positive;
#endif
}
SIMGRAD_HD inline double Relu(double x) {
  const double positive = x > 0.0 ? x : 0.0;
  return x != x ? x : positive;
}

// Max(x, bound) for a bound that is neither NaN nor +0: one instruction, which gives x where the two
// are equal or x is NaN.
SIMGRAD_HD inline float AtLeast(float x, float bound) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return Max(x, bound);
#else
  return bound > x ? bound : x;
#endif
}
SIMGRAD_HD inline double AtLeast(double x, double bound) { return bound > x ? bound : x; }

// Min(x, bound) for a bound that is neither NaN nor -0.
SIMGRAD_HD inline float AtMost(float x, float bound) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return Min(x, bound);
#else
  return bound < x ? bound : x;
#endif
}
SIMGRAD_HD inline double AtMost(double x, double bound) { return bound < x ? bound : x; }

SIMGRAD_HD inline float Abs(float x) { return FloatOf(BitsOf(x) & 0x7FFFFFFFu); }
SIMGRAD_HD inline float Neg(float x) { return FloatOf(BitsOf(x) ^ 0x80000000u); }
SIMGRAD_HD inline double Abs(double x) { return DoubleOf(BitsOf(x) & 0x7FFFFFFFFFFFFFFFu); }
SIMGRAD_HD inline double Neg(double x) { return DoubleOf(BitsOf(x) ^ (uint64_t{1} << 63)); }

SIMGRAD_HD inline float Sign(float x) {
  return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : (x != x ? Canonical(x) : 0.0f));
}
SIMGRAD_HD inline double Sign(double x) {
  return x > 0.0 ? 1.0 : (x < 0.0 ? -1.0 : (x != x ? Canonical(x) : 0.0));
}

// Adding and subtracting 2^(p-1), whose ulp is 1, rounds a smaller magnitude to an integer.
SIMGRAD_HD inline float Round(float x) {
  const uint32_t sign = BitsOf(x) & 0x80000000u;
  const float absolute = FloatOf(BitsOf(x) ^ sign);
  const float integer = (absolute + 0x1p23f) - 0x1p23f;
  return Canonical(absolute < 0x1p23f ? FloatOf(BitsOf(integer) | sign) : x);
}
SIMGRAD_HD inline double Round(double x) {
  const uint64_t sign = BitsOf(x) & (uint64_t{1} << 63);
  const double absolute = DoubleOf(BitsOf(x) ^ sign);
  const double integer = (absolute + 0x1p52) - 0x1p52;
  return Canonical(absolute < 0x1p52 ? DoubleOf(BitsOf(integer) | sign) : x);
}

SIMGRAD_HD inline float Floor(float x) {
  const float nearest = Round(x);
  return nearest > x ? nearest - 1.0f : nearest;
}
SIMGRAD_HD inline double Floor(double x) {
  const double nearest = Round(x);
  return nearest > x ? nearest - 1.0 : nearest;
}

SIMGRAD_HD inline float Ceil(float x) {
  return Canonical(FloatOf(BitsOf(Floor(FloatOf(BitsOf(x) ^ 0x80000000u))) ^ 0x80000000u));
}
SIMGRAD_HD inline double Ceil(double x) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return Canonical(DoubleOf(BitsOf(Floor(DoubleOf(BitsOf(x) ^ kSign))) ^ kSign));
}

SIMGRAD_HD inline float Trunc(float x) {
  const uint32_t sign = BitsOf(x) & 0x80000000u;
  return Canonical(FloatOf(BitsOf(Floor(FloatOf(BitsOf(x) ^ sign))) | sign));
}
SIMGRAD_HD inline double Trunc(double x) {
  const uint64_t sign = BitsOf(x) & (uint64_t{1} << 63);
  return Canonical(DoubleOf(BitsOf(Floor(DoubleOf(BitsOf(x) ^ sign))) | sign));
}

}  // namespace simgrad::precision
