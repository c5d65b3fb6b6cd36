#include "precision/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "precision/rounding.h"

namespace simgrad::precision {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <Format F>
void ExpectTheSmallestPower() {
  const double most = Traits(F).max_finite;
  const int lowest = -1074 - std::ilogb(most);
  for (int k = lowest; k < 1024 - std::ilogb(most); ++k) {
    // Subnormal numbers below have too few digits for 1.75.
    const double amax = std::ldexp(most, k);
    if (std::ldexp(amax, -k) != most) continue;
    EXPECT_EQ(ScaleExponent<F>(amax), k) << amax;
    EXPECT_EQ(ScaleExponent<F>(std::nextafter(amax, 0.0)), k) << amax;
    const double above = std::nextafter(amax, kInfinity);
    EXPECT_EQ(ScaleExponent<F>(above), std::isfinite(above) ? k + 1 : 0) << amax;
  }
  EXPECT_EQ(ScaleExponent<F>(0x1p-1074), lowest);
  for (double none : {0.0, -0.0, kInfinity, kNan}) EXPECT_EQ(ScaleExponent<F>(none), 0);
}

TEST(Quantize, TheScaleIsTheSmallestPowerOfTwoThatHoldsAmaxToItsLastBit) {
  ExpectTheSmallestPower<Format::kE4m3>();
  ExpectTheSmallestPower<Format::kE5m2>();
}

TEST(Quantize, RoundsOnceAndKeepsAValueOfItsFormat) {
  for (Format to : {Format::kE4m3, Format::kE5m2}) {
    for (Format format : {Format::kF64, Format::kF32, Format::kBf16, Format::kF16}) {
      uint64_t bits = 67;
      for (int i = 0; i < 4000; ++i) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        const uint64_t width = static_cast<uint64_t>(Traits(format).bits);
        const double x = Decode(format, bits >> (64 - width));
        if (!std::isfinite(x)) continue;
        const double amax = std::abs(x) * (i % 2 == 0 ? 1.0 : 1.5);
        if (!std::isfinite(amax)) continue;
        const int k = to == Format::kE4m3 ? ScaleExponent<Format::kE4m3>(amax)
                                          : ScaleExponent<Format::kE5m2>(amax);
        const double q = RoundTo(to, std::ldexp(x, -k), Overflow::kSaturate);
        const double kept = Quantized(to, x, amax);
        EXPECT_EQ(kept, std::ldexp(q, k)) << x;
        if (std::abs(kept) <= Traits(format).max_finite) {
          EXPECT_EQ(RoundTo(format, kept), kept) << x;
        }
      }
    }
  }
}

TEST(Quantize, SaturatesAnInfinityAndKeepsNan) {
  EXPECT_EQ(Quantized(Format::kE4m3, kInfinity, 1.0), std::ldexp(448.0, -8));
  EXPECT_EQ(Quantized(Format::kE5m2, -kInfinity, 0.0), -57344.0);
  EXPECT_TRUE(std::isnan(Quantized(Format::kE4m3, kNan, 1.0)));
  EXPECT_TRUE(std::signbit(Quantized(Format::kE4m3, -0.0, 1.0)));
}

}  // namespace
}  // namespace simgrad::precision
