// Philox against the vectors of its authors, and what is made of its words.
#include "precision/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "precision/rounding.h"

namespace simgrad::precision {
namespace {

// kat_vectors of Random123, philox 4x32 with 10 rounds.
TEST(Philox, GivesItsAuthorsVectors) {
  PhiloxBlock block = Philox(0, 0, 0, 0, 0);
  EXPECT_EQ(block.first, 0x6627e8d5e169c58du);
  EXPECT_EQ(block.second, 0xbc57ac4c9b00dbd8u);
  block = Philox(~uint64_t{0}, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu);
  EXPECT_EQ(block.first, 0x408f276d41c83b0eu);
  EXPECT_EQ(block.second, 0xa20bc7c66d5451fdu);
  block = Philox(0x299f31d0a4093822u, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u);
  EXPECT_EQ(block.first, 0xd16cfe0994fdccebu);
  EXPECT_EQ(block.second, 0x5001e42024126ea1u);
}

TEST(Uniform, IsExactInItsFormatAndBelowOne) {
  for (int f = 0; f < kFormatCount; ++f) {
    const Format format = static_cast<Format>(f);
    const double most = UniformOf(~uint64_t{0}, UniformBits(format));
    EXPECT_LT(most, 1.0) << FormatName(format);
    EXPECT_EQ(UniformOf(0, UniformBits(format)), 0.0);
    for (int64_t i = 0; i < 1000; ++i) {
      const double x = UniformOf(Draw(7, 0, i, 0, 0).first, UniformBits(format));
      ASSERT_EQ(RoundTo(format, x), x) << FormatName(format);
      ASSERT_TRUE(0.0 <= x && x < 1.0);
    }
  }
}

// With 2^16 numbers the mean of a moment deviates by five standard errors once in a million.
TEST(Draws, HaveTheMomentsOfTheirDistributions) {
  constexpr int64_t kCount = 1 << 16;
  double mean = 0, square = 0, normal = 0, variance = 0, fourth = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const PhiloxBlock block = Draw(RandomKey(3, 11), 1, i, 2, 0);
    const double u = UniformOf(block.first, 53) - 0.5;
    const double z = NormalOf(block);
    mean += u / kCount;
    square += u * u / kCount;
    normal += z / kCount;
    variance += z * z / kCount;
    fourth += z * z * z * z / kCount;
  }
  const double error = 5.0 / 256.0;
  EXPECT_NEAR(mean, 0.0, error * std::sqrt(1.0 / 12));
  EXPECT_NEAR(square, 1.0 / 12, error * std::sqrt(1.0 / 180));
  EXPECT_NEAR(normal, 0.0, error);
  EXPECT_NEAR(variance, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(fourth, 3.0, error * std::sqrt(96.0));
}

TEST(Normal, IsFiniteAtTheEndsOfItsUniforms) {
  EXPECT_EQ(NormalOf({0, 0}), std::sqrt(-2.0 * std::log(0x1p-53)));
  EXPECT_EQ(NormalOf({~uint64_t{0}, 0}), 0.0);
}

TEST(Draws, HangOnEveryCounter) {
  const uint64_t first = Draw(1, 2, 3, 4, 5).first;
  EXPECT_NE(first, Draw(2, 2, 3, 4, 5).first);
  EXPECT_NE(first, Draw(1, 3, 3, 4, 5).first);
  EXPECT_NE(first, Draw(1, 2, 4, 4, 5).first);
  EXPECT_NE(first, Draw(1, 2, 3, 5, 5).first);
  EXPECT_NE(first, Draw(1, 2, 3, 4, 6).first);
}

}  // namespace
}  // namespace simgrad::precision
