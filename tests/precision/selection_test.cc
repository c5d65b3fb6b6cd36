#include "precision/selection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// maximum of IEEE 754-2019 written out: NaN first, then the order in which -0 < +0.
double Maximum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kNan;
  if (a == 0.0 && b == 0.0) return std::signbit(a) && std::signbit(b) ? -0.0 : 0.0;
  return std::max(a, b);
}
double Minimum(double a, double b) { return -Maximum(-a, -b); }

// The same bits, or both NaN: Abs, Neg and Min leave the bits of a NaN open.
bool SameNumber(double a, double b) { return SameBits(a, b) || (std::isnan(a) && std::isnan(b)); }

class EveryFormat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(kAllFormats),
                         [](const auto& param) { return Traits(param.param).name; });

TEST_P(EveryFormat, MaxAndMinAreThoseOfIeee2019ForAllCorners) {
  for (const double a : Corners(GetParam())) {
    for (const double b : Corners(GetParam())) {
      EXPECT_TRUE(SameBits(Max(a, b), Maximum(a, b))) << a << " " << b;
      EXPECT_TRUE(SameNumber(Min(a, b), Minimum(a, b))) << a << " " << b;
      const bool is_least = !std::isnan(b) && (b != 0 || std::signbit(b));
      const bool is_most = !std::isnan(b) && (b != 0 || !std::signbit(b));
      EXPECT_TRUE(!is_least || SameNumber(AtLeast(a, b), Maximum(a, b))) << a << " " << b;
      EXPECT_TRUE(!is_most || SameNumber(AtMost(a, b), Minimum(a, b))) << a << " " << b;
      if (GetParam() == Format::kF64) continue;
      const float x = static_cast<float>(a);
      const float y = static_cast<float>(b);
      EXPECT_TRUE(!is_least || SameNumber(AtLeast(x, y), Maximum(a, b))) << a << " " << b;
      EXPECT_TRUE(!is_most || SameNumber(AtMost(x, y), Minimum(a, b))) << a << " " << b;
      EXPECT_TRUE(SameBits(Max(x, y), Maximum(a, b))) << a << " " << b;
      EXPECT_TRUE(SameNumber(Min(x, y), Minimum(a, b))) << a << " " << b;
    }
  }
}

TEST_P(EveryFormat, UnaryOperationsStayInTheFormatAndMatchTheirDefinition) {
  RandomOperands random(GetParam(), 41);
  std::vector<double> operands = Corners(GetParam());
  for (int i = 0; i < 20000; ++i) operands.push_back(i % 2 == 0 ? random.Any() : random.Near(8.0));
  for (const double x : operands) {
    const double integer = std::nearbyint(x);  // the test runs in round to nearest
    const double sign = std::isnan(x) ? kNan : static_cast<double>((x > 0) - (x < 0));
    EXPECT_TRUE(SameBits(Floor(x), std::floor(x))) << x;
    EXPECT_TRUE(SameBits(Round(x), integer)) << x;
    EXPECT_TRUE(SameNumber(Relu(x), Maximum(x, 0.0))) << x;
    EXPECT_TRUE(SameNumber(Abs(x), std::abs(x))) << x;
    EXPECT_TRUE(SameNumber(Neg(x), -x)) << x;
    EXPECT_TRUE(SameBits(Sign(x), sign)) << x;
    EXPECT_TRUE(SameBits(RoundTo(GetParam(), Floor(x)), std::floor(x))) << x;
    EXPECT_TRUE(SameBits(RoundTo(GetParam(), Round(x)), integer)) << x;
    if (GetParam() == Format::kF64) continue;
    const float y = static_cast<float>(x);
    EXPECT_TRUE(SameBits(Floor(y), std::floor(x))) << x;
    EXPECT_TRUE(SameBits(Round(y), integer)) << x;
    EXPECT_TRUE(SameNumber(Relu(y), Maximum(x, 0.0))) << x;
    EXPECT_TRUE(SameNumber(Abs(y), std::abs(x))) << x;
    EXPECT_TRUE(SameNumber(Neg(y), -x)) << x;
    EXPECT_TRUE(SameBits(Sign(y), sign)) << x;
  }
}

TEST(Selection, NanResultsAreTheCanonicalOneOrLeaveTheirBitsOpen) {
  const double nan = DoubleOf(0xFFF0000000000123);
  for (const double result : {Max(nan, 1.0), Sign(nan), Floor(nan), Round(nan), Canonical(nan)}) {
    EXPECT_EQ(BitsOf(result), kDoubleNanBits);
  }
  for (const double result : {Min(1.0, nan), Min(nan, 1.0), Abs(nan), Neg(nan), Relu(nan),
                              AtLeast(nan, 1.0), AtMost(nan, 1.0)}) {
    EXPECT_TRUE(std::isnan(result));
  }
  EXPECT_EQ(BitsOf(Max(FloatOf(0xFF800001u), 1.0f)), kFloatNanBits);
}

TEST(Selection, FiniteMeansNeitherInfiniteNorNan) {
  for (const double x : {kInf, -kInf, kNan}) {
    EXPECT_FALSE(IsFinite(x));
    EXPECT_FALSE(IsFinite(static_cast<float>(x)));
  }
  EXPECT_TRUE(IsFinite(std::numeric_limits<double>::max()));
  EXPECT_TRUE(IsFinite(-std::numeric_limits<float>::max()));
  EXPECT_TRUE(IsFinite(DoubleOf(1)));
}

}  // namespace
}  // namespace simgrad::precision
