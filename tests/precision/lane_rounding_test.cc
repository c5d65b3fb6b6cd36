#include "precision/lane_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "precision/rounding.h"
#include "tests/environment.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

// RoundTo is proved against MPFR and the enumeration in rounding_test; here it is the oracle.
template <Format F>
testing::AssertionResult FloatAgrees(float x) {
  for (const Overflow overflow : {Overflow::kIeee, Overflow::kSaturate}) {
    const double want = RoundTo(F, static_cast<double>(x), overflow);
    if (!SameBits(RoundFloat<F>(x, overflow), want)) {
      return testing::AssertionFailure() << FormatName(F) << " of float bits " << BitsOf(x);
    }
  }
  return testing::AssertionSuccess();
}

template <Format F>
testing::AssertionResult DoubleAgrees(double x) {
  for (const Overflow overflow : {Overflow::kIeee, Overflow::kSaturate}) {
    if (!SameBits(RoundDouble<F>(x, overflow), RoundTo(F, x, overflow))) {
      return testing::AssertionFailure() << FormatName(F) << " of double bits " << BitsOf(x);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult FloatAgreesInAll(float x) {
  testing::AssertionResult result = FloatAgrees<Format::kF32>(x);
  if (result) result = FloatAgrees<Format::kBf16>(x);
  if (result) result = FloatAgrees<Format::kF16>(x);
  if (result) result = FloatAgrees<Format::kE4m3>(x);
  if (result) result = FloatAgrees<Format::kE5m2>(x);
  return result;
}

testing::AssertionResult DoubleAgreesInAll(double x) {
  testing::AssertionResult result = DoubleAgrees<Format::kF64>(x);
  if (result) result = DoubleAgrees<Format::kF32>(x);
  if (result) result = DoubleAgrees<Format::kBf16>(x);
  if (result) result = DoubleAgrees<Format::kF16>(x);
  if (result) result = DoubleAgrees<Format::kE4m3>(x);
  if (result) result = DoubleAgrees<Format::kE5m2>(x);
  return result;
}

// A stride coprime to 2^32 visits every exponent some thousand times; SIMGRAD_LONG takes all.
TEST(RoundFloat, IsRoundToForFloatsOfEveryExponent) {
  const uint64_t stride = IsLong() ? 1 : 4099;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += stride) {
    ASSERT_TRUE(FloatAgreesInAll(FloatOf(static_cast<uint32_t>(pattern))));
  }
}

TEST(RoundFloat, IsRoundToAroundEveryMidpointOfTheShortFormats) {
  for (const Format format : kShortFormats) {
    for (uint64_t code = 0; code < uint64_t{1} << Traits(format).bits; ++code) {
      const float value = static_cast<float>(Decode(format, code));
      const float next = static_cast<float>(Decode(format, code + 1));
      const float middle = value + (next - value) / 2;
      for (const float point : {value, middle}) {
        ASSERT_TRUE(FloatAgreesInAll(point));
        ASSERT_TRUE(FloatAgreesInAll(std::nextafter(point, INFINITY)));
        ASSERT_TRUE(FloatAgreesInAll(std::nextafter(point, -INFINITY)));
      }
    }
  }
}

TEST(RoundDouble, IsRoundToForDoublesOfEveryExponent) {
  std::mt19937_64 random(23);
  for (uint64_t field = 0; field < 4096; ++field) {
    for (int i = 0; i < 40; ++i) {
      ASSERT_TRUE(DoubleAgreesInAll(DoubleOf(field << 52 | random() >> 12)));
    }
    ASSERT_TRUE(DoubleAgreesInAll(DoubleOf(field << 52)));
    ASSERT_TRUE(DoubleAgreesInAll(DoubleOf((field + 1) * (uint64_t{1} << 52) - 1)));
  }
}

// One rounding from the double: through float the neighbours of a midpoint would become the tie.
TEST(RoundDouble, IsRoundToAroundEveryMidpointOfTheShortFormats) {
  for (const Format format : kShortFormats) {
    for (uint64_t code = 0; code < uint64_t{1} << Traits(format).bits; ++code) {
      const double value = Decode(format, code);
      const double middle = value + (Decode(format, code + 1) - value) / 2;
      for (const double point : {value, middle}) {
        ASSERT_TRUE(DoubleAgreesInAll(point));
        ASSERT_TRUE(DoubleAgreesInAll(std::nextafter(point, INFINITY)));
        ASSERT_TRUE(DoubleAgreesInAll(std::nextafter(point, -INFINITY)));
      }
    }
  }
}

TEST(RoundDouble, RoundsOnceWhereThroughFloatWouldRoundTwice) {
  const double x = 1 + 0x1p-11 + 0x1p-40;  // just above the tie between 1 and 1 + 2^-10
  EXPECT_EQ(RoundDouble<Format::kF16>(x), 1 + 0x1p-10);
  EXPECT_EQ(RoundFloat<Format::kF16>(static_cast<float>(x)), 1.0f);
}

TEST(RoundFloat, OverflowsAsTheFormatAndTheCallerSay) {
  EXPECT_EQ(RoundFloat<Format::kF16>(65520.0f), INFINITY);
  EXPECT_EQ(RoundFloat<Format::kE4m3>(1000.0f, Overflow::kSaturate), 448.0f);
  EXPECT_TRUE(std::isnan(RoundFloat<Format::kE4m3>(1000.0f)));
  EXPECT_EQ(RoundFloat<Format::kE5m2>(-1e6f), -INFINITY);
}

}  // namespace
}  // namespace simgrad::precision
