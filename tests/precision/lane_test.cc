#include "precision/lane.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "precision/arithmetic.h"
#include "tests/environment.h"
#include "tests/precision/format_oracle.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

// arithmetic.h is proved against MPFR in arithmetic_test; here it is the oracle. A NaN of f64 and
// f32 lanes is canonical only after Canonical.
template <class Carrier>
bool Agrees(Carrier lane, double reference) {
  return SameBits(Canonical(lane), reference);
}

template <Format F>
class LaneOf : public testing::Test {
 protected:
  using L = Lane<F>;
  using Carrier = typename L::Carrier;

  void CheckPair(double a, double b) {
    const Carrier x = static_cast<Carrier>(a);
    const Carrier y = static_cast<Carrier>(b);
    ASSERT_TRUE(Agrees(L::Add(x, y), Add(F, a, b))) << std::hexfloat << a << " + " << b;
    ASSERT_TRUE(Agrees(L::Sub(x, y), Sub(F, a, b))) << std::hexfloat << a << " - " << b;
    ASSERT_TRUE(Agrees(L::Mul(x, y), Mul(F, a, b))) << std::hexfloat << a << " * " << b;
    ASSERT_TRUE(Agrees(L::Div(x, y), Div(F, a, b))) << std::hexfloat << a << " / " << b;
  }
  void CheckFma(double a, double b, double c) {
    const Carrier lane =
        L::Fma(static_cast<Carrier>(a), static_cast<Carrier>(b), static_cast<Carrier>(c));
    ASSERT_TRUE(Agrees(lane, Fma(F, a, b, c))) << std::hexfloat << a << " * " << b << " + " << c;
  }
};

template <class FormatConstant>
class EveryLane : public LaneOf<FormatConstant::value> {};

using LaneFormats = testing::Types<
    std::integral_constant<Format, Format::kF64>, std::integral_constant<Format, Format::kF32>,
    std::integral_constant<Format, Format::kBf16>, std::integral_constant<Format, Format::kF16>,
    std::integral_constant<Format, Format::kE4m3>, std::integral_constant<Format, Format::kE5m2>>;
TYPED_TEST_SUITE(EveryLane, LaneFormats);

TYPED_TEST(EveryLane, CornersAreTheReference) {
  for (const double a : Corners(TypeParam::value)) {
    for (const double b : Corners(TypeParam::value)) {
      this->CheckPair(a, b);
      for (const double c : Corners(TypeParam::value)) this->CheckFma(a, b, c);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(EveryLane, RandomOperandsAreTheReference) {
  RandomOperands random(TypeParam::value, 37);
  for (int i = 0; i < 300000 && !this->HasFatalFailure(); ++i) {
    const double a = random.Any();
    const double b = i % 2 == 0 ? random.Any() : random.Near(a);
    const double c = i % 3 == 0 ? random.Any() : random.Near(a * b);
    this->CheckPair(a, b);
    this->CheckFma(a, b, c);
  }
}

template <class FormatConstant>
class ShortLane : public LaneOf<FormatConstant::value> {};
using ShortLaneFormats = testing::Types<std::integral_constant<Format, Format::kBf16>,
                                        std::integral_constant<Format, Format::kF16>>;
TYPED_TEST_SUITE(ShortLane, ShortLaneFormats);

TYPED_TEST(ShortLane, SqrtIsTheReferenceForEveryPattern) {
  constexpr Format kFormat = TypeParam::value;
  for (uint64_t code = 0; code < 0x10000; ++code) {
    const double a = Decode(kFormat, code);
    ASSERT_TRUE(Agrees(Lane<kFormat>::Sqrt(static_cast<float>(a)), Sqrt(kFormat, a))) << a;
  }
}

// The claim Roux's conditions leave open for bf16 multiply, and the others beside it: all pairs of
// encodings with SIMGRAD_LONG, else every 61st second operand, which meets every exponent.
TYPED_TEST(ShortLane, PairsOfEncodingsAreTheReference) {
  constexpr Format kFormat = TypeParam::value;
  const uint64_t stride = IsLong() ? 1 : 61;
  const uint64_t first_stride = IsLong() ? 1 : 13;
  for (uint64_t i = 0; i < 0x10000 && !this->HasFatalFailure(); i += first_stride) {
    const double a = Decode(kFormat, i);
    for (uint64_t j = i % stride; j < 0x10000; j += stride) {
      const double b = Decode(kFormat, j);
      const float product = Lane<kFormat>::Mul(static_cast<float>(a), static_cast<float>(b));
      ASSERT_TRUE(Agrees(product, Mul(kFormat, a, b))) << std::hexfloat << a << " * " << b;
    }
    for (uint64_t j = i % 997; j < 0x10000; j += 997) this->CheckPair(a, Decode(kFormat, j));
  }
}

// FP8 by f32: all pairs of all encodings against MPFR, and all triples of fma against arithmetic.h.
template <class FormatConstant>
class Fp8Lane : public LaneOf<FormatConstant::value> {};
using Fp8Formats = testing::Types<std::integral_constant<Format, Format::kE4m3>,
                                  std::integral_constant<Format, Format::kE5m2>>;
TYPED_TEST_SUITE(Fp8Lane, Fp8Formats);

TYPED_TEST(Fp8Lane, EveryPairIsMpfrs) {
  constexpr Format kFormat = TypeParam::value;
  using Fp8 = Lane<kFormat>;
  FormatOracle oracle(kFormat);
  for (uint64_t i = 0; i < 256; ++i) {
    const double a = Decode(kFormat, i);
    const float x = static_cast<float>(a);
    ASSERT_TRUE(Agrees(Fp8::Sqrt(x), oracle.Sqrt(a))) << a;
    for (uint64_t j = 0; j < 256; ++j) {
      const double b = Decode(kFormat, j);
      const float y = static_cast<float>(b);
      ASSERT_TRUE(Agrees(Fp8::Add(x, y), oracle.Add(a, b))) << a << " + " << b;
      ASSERT_TRUE(Agrees(Fp8::Sub(x, y), oracle.Sub(a, b))) << a << " - " << b;
      ASSERT_TRUE(Agrees(Fp8::Mul(x, y), oracle.Mul(a, b))) << a << " * " << b;
      ASSERT_TRUE(Agrees(Fp8::Div(x, y), oracle.Div(a, b))) << a << " / " << b;
      this->CheckPair(a, b);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(Fp8Lane, EveryTripleOfFmaIsMpfrs) {
  constexpr Format kFormat = TypeParam::value;
  FormatOracle oracle(kFormat);
  const uint64_t stride = IsLong() ? 1 : 7;
  for (uint64_t i = 0; i < 256; ++i) {
    for (uint64_t j = i % stride; j < 256; j += stride) {
      for (uint64_t k = (i + j) % stride; k < 256; k += stride) {
        const double a = Decode(kFormat, i);
        const double b = Decode(kFormat, j);
        const double c = Decode(kFormat, k);
        ASSERT_TRUE(SameBits(Fma(kFormat, a, b, c), oracle.Fma(a, b, c)));
        this->CheckFma(a, b, c);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

TEST(Lane, FmaOnFloatsSeesTheSmallestAddend) {
  EXPECT_EQ(Lane<Format::kF16>::Fma(3.0f, 683.0f / 2048, 0x1p-24f), 1.0009765625f);
  // 7 * 37 = 259 has 9 bits: the midpoint of the bf16 neighbours 258 and 260.
  EXPECT_EQ(Lane<Format::kBf16>::Fma(7.0f, 37.0f, 0x1p-133f), 260.0f);
  EXPECT_EQ(Lane<Format::kBf16>::Fma(7.0f, 37.0f, -0x1p-133f), 258.0f);
  EXPECT_EQ(Lane<Format::kBf16>::Fma(0x1p100f, 0x1p100f, -INFINITY), -INFINITY);
}

}  // namespace
}  // namespace simgrad::precision
