// Rounding to tf32 against its definition, in doubles: each product with a power of two is exact.
#include "precision/tf32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/environment.h"

namespace simgrad::precision {
namespace {

constexpr CastRounding kRoundings[] = {CastRounding::kNearestEven, CastRounding::kNearestAway,
                                       CastRounding::kTowardZero};

// The multiple of 2^max(e - 10, -136) next to x, 2^e <= |x| < 2^(e+1), and Inf from 2^128 on.
double Defined(double x, CastRounding rounding) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const int quantum = std::max(std::ilogb(x) - 10, -136);
  const double scaled = std::ldexp(x, -quantum);
  const double whole = rounding == CastRounding::kNearestEven   ? std::nearbyint(scaled)
                       : rounding == CastRounding::kNearestAway ? std::round(scaled)
                                                                : std::trunc(scaled);
  const double rounded = std::ldexp(whole, quantum);
  return std::abs(rounded) < 0x1p128 ? std::copysign(rounded, x) : std::copysign(HUGE_VAL, x);
}

void ExpectDefined(uint32_t bits, CastRounding rounding) {
  const float x = FloatOf(bits);
  const uint32_t actual = BitsOf(RoundToTf32(x, rounding));
  const uint32_t expected =
      x != x ? kFloatNanBits : BitsOf(static_cast<float>(Defined(x, rounding)));
  ASSERT_EQ(actual, expected) << x << " by " << CastRoundingName(rounding);
}

// A prime stride; with SIMGRAD_LONG every float.
TEST(Tf32, FloatsRoundAsTheDefinition) {
  const uint64_t stride = IsLong() ? 1 : 2003;
  for (const CastRounding rounding : kRoundings) {
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += stride) {
      ExpectDefined(static_cast<uint32_t>(bits), rounding);
    }
  }
}

// Values of tf32, their midpoints, and the floats beside both, in every binade.
TEST(Tf32, MidpointsAndTheirNeighboursRoundAsTheDefinition) {
  for (const CastRounding rounding : kRoundings) {
    for (uint64_t half = 0; half < uint64_t{1} << 32; half += uint64_t{1} << 12) {
      const auto bits = static_cast<uint32_t>(half);
      for (const uint32_t near : {bits - 1, bits, bits + 1}) ExpectDefined(near, rounding);
    }
  }
}

TEST(Tf32, TheEdgesOfItsRangeAreThoseOfTheTable) {
  const float largest = FloatOf(0x7F7FE000u);  // 2^128 - 2^117
  const float beyond = FloatOf(0x7F7FF000u);   // 2^128 - 2^116, between it and 2^128
  EXPECT_EQ(RoundToTf32<CastRounding::kNearestEven>(largest), largest);
  EXPECT_EQ(RoundToTf32<CastRounding::kNearestEven>(beyond), HUGE_VALF);
  EXPECT_EQ(RoundToTf32<CastRounding::kNearestAway>(-beyond), -HUGE_VALF);
  EXPECT_EQ(RoundToTf32<CastRounding::kTowardZero>(0x1.fffffep127f), largest);
  // The smallest subnormal is 2^-136; its half is a tie, to even 0.
  EXPECT_EQ(RoundToTf32<CastRounding::kNearestEven>(0x1p-136f), 0x1p-136f);
  EXPECT_EQ(BitsOf(RoundToTf32<CastRounding::kNearestEven>(-0x1p-137f)), 0x80000000u);
  EXPECT_EQ(RoundToTf32<CastRounding::kNearestAway>(0x1p-137f), 0x1p-136f);
  EXPECT_EQ(RoundToTf32<CastRounding::kTowardZero>(0x1.fffp-136f), 0x1p-136f);
  EXPECT_EQ(BitsOf(RoundToTf32<CastRounding::kTowardZero>(FloatOf(0xFFFFFFFFu))), kFloatNanBits);
}

}  // namespace
}  // namespace simgrad::precision
