// The number formats of the project and what defines each of them.
//
// Maths: a finite value is an integer multiple of 2^emin with at most `precision` significant bits.
// Accuracy: every value of every format is exactly a double, the carrier of the host functions.
// Errors: FormatFromName and its siblings answer nullopt for an unknown name.
// Threads: all functions are pure; host and device (the names are host only).
// Source: docs/numerics.md section 1; FP8 as in the OCP 8-bit floating point specification (OFP8).
#pragma once

#include "precision/host_device.h"

#ifndef __CUDACC_RTC__
#include <optional>
#include <string_view>
#endif

namespace simgrad::precision {

enum class Format : uint8_t { kF64, kF32, kBf16, kF16, kE4m3, kE5m2 };
inline constexpr int kFormatCount = 6;

// The result of a cast of a value beyond the largest finite one.
enum class Overflow : uint8_t {
  kIeee,      // Inf; NaN for e4m3, which has no Inf
  kSaturate,  // the largest finite value with the sign, also for an infinite input
};

// How a cast rounds. Arithmetic always rounds to nearest even.
enum class CastRounding : uint8_t { kNearestEven, kNearestAway, kTowardZero, kStochastic };

struct FormatTraits {
  const char* name;
  int bits;
  int precision;           // with the hidden bit
  int bias;                // of the exponent field
  int min_exponent;        // 2^min_exponent is the smallest normal number
  int emin;                // 2^emin is the smallest subnormal number
  double max_finite;       // the largest finite value
  uint64_t canonical_nan;  // the one NaN that leaves an executor
  bool has_infinity;
};

SIMGRAD_HD constexpr FormatTraits Traits(Format format) {
  switch (format) {
    case Format::kF64:
      return {"f64", 64, 53, 1023, -1022, -1074, 0x1.fffffffffffffp1023, 0x7FF8000000000000u, true};
    case Format::kF32:
      return {"f32", 32, 24, 127, -126, -149, 0x1.fffffep127, 0x7FC00000u, true};
    case Format::kBf16:
      return {"bf16", 16, 8, 127, -126, -133, 0x1.fep127, 0x7FC0u, true};
    case Format::kF16:
      return {"f16", 16, 11, 15, -14, -24, 65504.0, 0x7E00u, true};
    case Format::kE4m3:
      return {"e4m3", 8, 4, 7, -6, -9, 448.0, 0x7Fu, false};
    case Format::kE5m2:
      break;
  }
  return {"e5m2", 8, 3, 15, -14, -16, 57344.0, 0x7Eu, true};
}

// Whether `to` lacks a finite value of `from`. Only such a conversion can under- or overflow.
SIMGRAD_HD constexpr bool Narrows(Format from, Format to) {
  const FormatTraits source = Traits(from);
  const FormatTraits target = Traits(to);
  return target.precision < source.precision || target.emin > source.emin ||
         target.max_finite < source.max_finite;
}

#ifndef __CUDACC_RTC__
constexpr std::string_view FormatName(Format format) { return Traits(format).name; }

constexpr std::optional<Format> FormatFromName(std::string_view name) {
  for (int i = 0; i < kFormatCount; ++i) {
    const Format format = static_cast<Format>(i);
    if (name == FormatName(format)) return format;
  }
  return std::nullopt;
}

constexpr std::string_view OverflowName(Overflow overflow) {
  return overflow == Overflow::kIeee ? "ieee" : "saturate";
}

constexpr std::optional<Overflow> OverflowFromName(std::string_view name) {
  if (name == "ieee") return Overflow::kIeee;
  if (name == "saturate") return Overflow::kSaturate;
  return std::nullopt;
}

constexpr std::string_view CastRoundingName(CastRounding rounding) {
  constexpr std::string_view kNames[] = {"nearest_even", "nearest_away", "toward_zero",
                                         "stochastic"};
  return kNames[static_cast<int>(rounding)];
}

constexpr std::optional<CastRounding> CastRoundingFromName(std::string_view name) {
  for (int i = 0; i < 4; ++i) {
    const CastRounding rounding = static_cast<CastRounding>(i);
    if (name == CastRoundingName(rounding)) return rounding;
  }
  return std::nullopt;
}
#endif

}  // namespace simgrad::precision
