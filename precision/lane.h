// The operations of one format on the carrier that a vector kernel computes in.
//
// Maths: as precision/arithmetic.h. f64 computes in double, all others in float. bf16, f16 and FP8
//   by float: Roux's conditions hold for add, subtract and sqrt (of these formats), for divide and,
//   but for the exponent range of bf16, for multiply; what they do not cover is checked
//   exhaustively (tests/precision). Fma: f16 products are exact in float, bf16 products exact in
//   double; the sum is rounded to odd and then once to the format.
// Accuracy: the bits of precision/arithmetic.h for operands in the format. f64 and f32 leave the
//   bits of a NaN to the hardware: apply Canonical where a value leaves the executor.
// Errors: none. Cost: no branch, so that loops over lanes become vector code.
// Threads: pure; host and device; needs the float environment of precision/float_environment.h.
// Source: docs/numerics.md section 2.
#pragma once

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

#include "precision/lane_rounding.h"
#include "precision/round_to_odd.h"
#include "precision/selection.h"

namespace simgrad::precision {

// bf16, f16, e4m3, e5m2.
template <Format F>
struct Lane {
  static constexpr Format kFormat = F;
  using Carrier = float;
  // A cast to F from either carrier.
  SIMGRAD_HD static Carrier Round(float x, Overflow overflow = Overflow::kIeee) {
    return RoundFloat<F>(x, overflow);
  }
  SIMGRAD_HD static Carrier Round(double x, Overflow overflow = Overflow::kIeee) {
    return static_cast<float>(RoundDouble<F>(x, overflow));
  }
  SIMGRAD_HD static Carrier Add(Carrier a, Carrier b) { return Round(a + b); }
  SIMGRAD_HD static Carrier Sub(Carrier a, Carrier b) { return Round(a - b); }
  SIMGRAD_HD static Carrier Mul(Carrier a, Carrier b) { return Round(a * b); }
  SIMGRAD_HD static Carrier Div(Carrier a, Carrier b) { return Round(a / b); }
  SIMGRAD_HD static Carrier Sqrt(Carrier a) { return Round(::sqrtf(a)); }
  SIMGRAD_HD static Carrier Fma(Carrier a, Carrier b, Carrier c) {
    if constexpr (F == Format::kBf16) {
      return Round(
          AddToOdd(static_cast<double>(a) * static_cast<double>(b), static_cast<double>(c)));
    } else {
      return Round(AddToOdd(a * b, c));
    }
  }
};

template <>
struct Lane<Format::kF32> {
  static constexpr Format kFormat = Format::kF32;
  using Carrier = float;
  SIMGRAD_HD static Carrier Round(float x, Overflow overflow = Overflow::kIeee) {
    return overflow == Overflow::kIeee ? x : RoundFloat<Format::kF32>(x, overflow);
  }
  SIMGRAD_HD static Carrier Round(double x, Overflow overflow = Overflow::kIeee) {
    // The conversion rounds to nearest even; a rounded-up Inf saturates like any other.
    return Round(static_cast<float>(x), overflow);
  }
  SIMGRAD_HD static Carrier Add(Carrier a, Carrier b) { return a + b; }
  SIMGRAD_HD static Carrier Sub(Carrier a, Carrier b) { return a - b; }
  SIMGRAD_HD static Carrier Mul(Carrier a, Carrier b) { return a * b; }
  SIMGRAD_HD static Carrier Div(Carrier a, Carrier b) { return a / b; }
  SIMGRAD_HD static Carrier Sqrt(Carrier a) { return ::sqrtf(a); }
  SIMGRAD_HD static Carrier Fma(Carrier a, Carrier b, Carrier c) { return ::fmaf(a, b, c); }
};

template <>
struct Lane<Format::kF64> {
  static constexpr Format kFormat = Format::kF64;
  using Carrier = double;
  SIMGRAD_HD static Carrier Round(double x, Overflow overflow = Overflow::kIeee) {
    return overflow == Overflow::kIeee ? x : RoundDouble<Format::kF64>(x, overflow);
  }
  SIMGRAD_HD static Carrier Add(Carrier a, Carrier b) { return a + b; }
  SIMGRAD_HD static Carrier Sub(Carrier a, Carrier b) { return a - b; }
  SIMGRAD_HD static Carrier Mul(Carrier a, Carrier b) { return a * b; }
  SIMGRAD_HD static Carrier Div(Carrier a, Carrier b) { return a / b; }
  SIMGRAD_HD static Carrier Sqrt(Carrier a) { return ::sqrt(a); }
  SIMGRAD_HD static Carrier Fma(Carrier a, Carrier b, Carrier c) { return ::fma(a, b, c); }
};

}  // namespace simgrad::precision
