#include "precision/ulp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class EveryFormat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(kAllFormats),
                         [](const auto& param) { return Traits(param.param).name; });

// In f32 and narrower also for values that the format does not hold.
TEST_P(EveryFormat, UlpIsItsDefinition) {
  const FormatTraits traits = Traits(GetParam());
  const double smallest = std::ldexp(1.0, traits.emin);
  RandomOperands random(Format::kF64, 83);
  for (int i = 0; i < 100000; ++i) {
    const double t = random.Any();
    if (!std::isfinite(t) || t == 0.0) continue;
    const double ulp = std::ldexp(1.0, std::ilogb(t) - traits.precision + 1);
    ASSERT_EQ(Ulp(GetParam(), t), std::max(ulp, smallest)) << std::hexfloat << t;
  }
  EXPECT_EQ(Ulp(GetParam(), 0.0), smallest);
  EXPECT_EQ(Ulp(GetParam(), -kInf), Ulp(GetParam(), traits.max_finite));
  EXPECT_TRUE(std::isnan(Ulp(GetParam(), kNan)));
}

TEST_P(EveryFormat, UlpIsTheDistanceToTheNextValue) {
  RandomOperands random(GetParam(), 89);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::abs(random.Any());
    if (!(value < Traits(GetParam()).max_finite)) continue;
    const double next = Decode(GetParam(), Encode(GetParam(), value) + 1);
    ASSERT_EQ(next - value, Ulp(GetParam(), value)) << std::hexfloat << value;
  }
}

TEST(Margin, IsSignedAndScaledAtTheLargestMagnitude) {
  // Octagon: S = 0x1.ffcp-11 against tol = 2^-10 in f16, whose ulp at 2^-10 is 2^-20.
  const Margin below = MarginOf(Format::kF16, 0x1.ff8p-11, 0x1p-10);
  EXPECT_EQ(below.absolute, -0x1p-20);
  EXPECT_EQ(below.ulps, -1.0);
  // The operands of the sum that produced a were 2 and -2 + a: their ulp, 2^-9, is the scale.
  const Margin cancelled = MarginOf(Format::kF16, 0x1.ff8p-11, 0x1p-10, 2.0);
  EXPECT_EQ(cancelled.absolute, -0x1p-20);
  EXPECT_EQ(cancelled.ulps, -0x1p-11);
}

TEST(Margin, OfIntegersIsTheirDifferenceRoundedOnce) {
  static_assert(std::numeric_limits<long double>::digits >= 64);  // difference is exact
  std::mt19937_64 random(97);
  std::vector<int64_t> numbers = {0, 1, -1, INT64_MAX, INT64_MIN, (int64_t{1} << 53) + 1};
  for (int i = 0; i < 300; ++i) {
    numbers.push_back(static_cast<int64_t>(random()) >> (random() % 64));
    numbers.push_back(numbers.back() + 1 - static_cast<int64_t>(random() % 3));
  }
  for (const int64_t a : numbers) {
    for (const int64_t b : numbers) {
      const long double difference = static_cast<long double>(a) - static_cast<long double>(b);
      ASSERT_TRUE(SameBits(IntegerMargin(a, b), static_cast<double>(difference))) << a << " " << b;
    }
  }
}

TEST(Margin, NonFiniteOperands) {
  const Margin infinite = MarginOf(Format::kF16, kInf, 1.0);
  EXPECT_EQ(infinite.absolute, kInf);
  EXPECT_EQ(infinite.ulps, kInf);
  const Margin nan = MarginOf(Format::kF16, kNan, 1.0);
  EXPECT_TRUE(SameBits(nan.absolute, kNan));
  EXPECT_TRUE(SameBits(nan.ulps, kNan));
  // An infinite operand of the sum leaves the margin of the finite result finite.
  EXPECT_EQ(MarginOf(Format::kF16, 2.0, 1.0, kInf).ulps, 1.0 / 32);
}

}  // namespace
}  // namespace simgrad::precision
