// The functions of f32, bf16 and f16 give the correctly rounded value: at every argument that is
// known to be hard, at 2^22 others of f32, at all of bf16 and of f16. every_float checks all of f32.
#include "precision/narrow_elementary.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "precision/hash.h"
#include "precision/lane.h"
#include "tests/precision/narrow_functions.h"
#include "tests/precision/operands.h"
#include "tests/precision/pair_check.h"
#include "tests/source_tree.h"

namespace simgrad::precision {
namespace {

std::string NameOf(const ::testing::TestParamInfo<NarrowFunction>& info) { return info.param.name; }

uint32_t BitsInF32(double y) {
  return static_cast<uint32_t>(Encode(Format::kF32, RoundTo(Format::kF32, y)));
}

// tests/data/hard_floats.txt, written by every_float: function, argument, result.
std::vector<FloatCheck::Hard> HardFloatsOf(const std::string& function) {
  std::ifstream file(tests::TestData("hard_floats.txt"));
  std::vector<FloatCheck::Hard> hard;
  std::string name;
  for (uint32_t x, y; file >> name >> std::hex >> x >> y;) {
    if (name == function) hard.push_back({x, y});
  }
  return hard;
}

class NarrowElementary : public ::testing::TestWithParam<NarrowFunction> {
 protected:
  void ExpectRounded(Format format, double x) {
    mpfr_set_d(exact_.get(), x, MPFR_RNDN);
    const int ternary = GetParam().oracle(exact_.get(), exact_.get(), MPFR_RNDN);
    const double expected = RoundedOracle(format, exact_.get(), ternary);
    const double result = RoundTo(format, GetParam().narrow(x));
    ASSERT_EQ(BitsOf(result), BitsOf(expected))
        << GetParam().name << std::hexfloat << " of " << x << " is " << result << " in "
        << FormatName(format) << ", not " << expected;
  }

  Real exact_;
};

INSTANTIATE_TEST_SUITE_P(Functions, NarrowElementary, ::testing::ValuesIn(kNarrowFunctions),
                         NameOf);

TEST_P(NarrowElementary, IsCorrectlyRoundedAtEveryHardFloat) {
  const std::vector<FloatCheck::Hard> hard = HardFloatsOf(GetParam().name);
  ASSERT_GE(hard.size(), 5u);
  for (const FloatCheck::Hard& one : hard) {
    const double x = static_cast<double>(FloatOf(one.argument));
    ASSERT_EQ(BitsInF32(GetParam().narrow(x)), one.result) << std::hex << one.argument;
    ExpectRounded(Format::kF32, x);
  }
}

// One of every 1024 neighbouring floats, so all exponents and both signs.
TEST_P(NarrowElementary, IsCorrectlyRoundedAtFourMillionFloats) {
  FloatCheck check(GetParam());
  constexpr uint32_t kPieces = (1u << 22) / FloatCheck::kPiece;
  for (uint32_t piece = 0; piece < kPieces; piece += kSweepShare) {
    check.Piece([piece](int i) {
      const uint32_t row = piece * FloatCheck::kPiece + static_cast<uint32_t>(i);
      return (row << 10) | static_cast<uint32_t>(SplitMix64(row) & 1023);
    });
  }
  EXPECT_EQ(check.wrong(), std::vector<uint32_t>{});
}

TEST_P(NarrowElementary, IsCorrectlyRoundedForAllOfSixteenBits) {
  for (Format format : {Format::kBf16, Format::kF16}) {
    for (uint64_t i = 0; i < 65536; i += kShortSweepShare) ExpectRounded(format, Decode(format, i));
  }
}

// What `functions 2` says of bf16 and f16: nothing of one operand changed there.
TEST_P(NarrowElementary, GivesWhatF64RoundedGivesInSixteenBits) {
  double y = 0;
  for (Format format : {Format::kBf16, Format::kF16}) {
    for (uint64_t i = 0; i < 65536; i += kShortSweepShare) {
      const double x = Decode(format, i);
      GetParam().wide_of_many(&x, &y, 1);
      ASSERT_EQ(BitsOf(RoundTo(format, GetParam().narrow(x))), BitsOf(RoundTo(format, y))) << x;
    }
  }
}

TEST_P(NarrowElementary, GivesTheCanonicalNanForEveryNan) {
  for (uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFA00123u, 0x7FFFFFFFu}) {
    const double y = GetParam().narrow(static_cast<double>(FloatOf(bits)));
    EXPECT_EQ(BitsOf(y), kDoubleNanBits) << std::hex << bits;
  }
}

// Bits, so that signs of zeros count.
TEST(NarrowElementary, SpecialCasesAreThoseOfAnnexF) {
  const uint32_t inf = kFloatInfinityBits;
  const uint32_t nan = kFloatNanBits;
  const uint32_t one = BitsOf(1.0f);
  const uint32_t minus_one = BitsOf(-1.0f);
  const uint32_t half = BitsOf(0.5f);
  const uint32_t ln2 = 0x3F317218u;
  const uint32_t minus_zero = 0x80000000u;
  const uint32_t minus_inf = 0xFF800000u;
  const uint32_t two = BitsOf(2.0f);
  const uint32_t pi = 0x40490FDBu;
  const uint32_t half_pi = 0x3FC90FDBu;
  const uint32_t minus_half_pi = 0xBFC90FDBu;
  // Exp, Expm1, Log, Log1p, Sin, Cos, Tanh, Sigmoid, Softplus; Exp2, Log2, Tan, Asin, Acos, Atan,
  // Sinh, Cosh, Rsqrt, Cbrt, Erf, Erfc: the order of the table.
  const std::map<uint32_t, std::vector<uint32_t>> cases = {
      {0, {one, 0, minus_inf, 0, 0, one, 0,   half, ln2, one, minus_inf,
           0,   0, half_pi,   0, 0, one, inf, 0,    0,   one}},
      {minus_zero,
       {one,        minus_zero, minus_inf, minus_zero, minus_zero, one,        minus_zero,
        half,       ln2,        one,       minus_inf,  minus_zero, minus_zero, half_pi,
        minus_zero, minus_zero, one,       minus_inf,  minus_zero, minus_zero, one}},
      {inf, {inf, inf, inf, inf,     nan, nan, one, one, inf, inf, inf,
             nan, nan, nan, half_pi, inf, inf, 0,   inf, one, 0}},
      {minus_inf,
       {0,   minus_one, nan,           nan,       nan, nan, minus_one, 0,         0,  0, nan, nan,
        nan, nan,       minus_half_pi, minus_inf, inf, nan, minus_inf, minus_one, two}},
      {0x00000001, {one, 1, 0xC2CE8ED0u, 1, 1, one, 1,           half,        ln2, one, 0xC3150000u,
                    1,   1, half_pi,     1, 1, one, 0x64B504F3u, 0x26A14518u, 1,   one}},
      {0x80000001, {one,        0x80000001, nan, 0x80000001, 0x80000001,  one,        0x80000001,
                    half,       ln2,        one, nan,        0x80000001,  0x80000001, half_pi,
                    0x80000001, 0x80000001, one, nan,        0xA6A14518u, 0x80000001, one}}};
  for (const auto& [x, results] : cases) {
    for (size_t i = 0; i < results.size(); ++i) {
      const NarrowFunction& function = kNarrowFunctions[i];
      EXPECT_EQ(BitsInF32(function.narrow(static_cast<double>(FloatOf(x)))), results[i])
          << function.name << " of " << std::hex << x;
    }
  }
  EXPECT_EQ(BitsInF32(narrow::Log(1.0)), 0u);
  EXPECT_EQ(BitsInF32(narrow::Log2(1.0)), 0u);
  EXPECT_EQ(BitsInF32(narrow::Acos(1.0)), 0u);
  EXPECT_EQ(BitsInF32(narrow::Acos(-1.0)), pi);
  EXPECT_EQ(BitsInF32(narrow::Asin(-1.0)), minus_half_pi);
  for (double beyond : {1.0 + 0x1p-23, -1.0 - 0x1p-23}) {
    EXPECT_EQ(BitsInF32(narrow::Asin(beyond)), nan);
    EXPECT_EQ(BitsInF32(narrow::Acos(beyond)), nan);
  }
  EXPECT_EQ(BitsInF32(narrow::Log1p(-1.0)), minus_inf);
  EXPECT_EQ(BitsInF32(narrow::Log1p(-1.5)), nan);
}

// The way of huge angles is right below the bound as well, so the bound decides no bit.
TEST(NarrowElementary, BothWaysOfAnglesAgreeNextToTheBound) {
  for (uint32_t bits = BitsOf(0x1p+22f) - 200000; bits < BitsOf(0x1p+22f); ++bits) {
    const double x = static_cast<double>(FloatOf(bits));
    const double sin = internal::SinOfQuarterTurns<true>(x, 0, 0);
    const double cos = internal::SinOfQuarterTurns<true>(x, 1, 0);
    ASSERT_EQ(BitsInF32(narrow::Sin(x)), BitsInF32(sin)) << x;
    ASSERT_EQ(BitsInF32(narrow::Cos(x)), BitsInF32(cos)) << x;
  }
}

// One row in 251 of the 65536; every_float takes all.
template <Format F>
void ExpectRowsRight(const PairFunction<F>& function) {
  PairCheck<F> check(function);
  for (uint32_t a = 0; a < 65536; a += 251) check.Row(static_cast<uint16_t>(a));
  EXPECT_EQ(check.wrong(), 0) << function.name;
  EXPECT_GT(check.asked(), 0) << function.name;
}

TEST(NarrowElementary, PowIsCorrectlyRoundedInSixteenBits) {
  ExpectRowsRight(kPowOfBf16);
  ExpectRowsRight(kPowOfF16);
}

TEST(NarrowElementary, Atan2IsCorrectlyRoundedInSixteenBits) {
  ExpectRowsRight(kAtan2OfBf16);
  ExpectRowsRight(kAtan2OfF16);
}

// 3/2 of the smallest subnormal number is a middle; the angle is smaller, so 1, not 2 of them.
TEST(NarrowElementary, Atan2OfBf16KnowsOnWhichSideOfAMiddleTheAngleLies) {
  const double tiny = std::ldexp(1.0, Traits(Format::kBf16).emin);
  EXPECT_EQ(RoundTo(Format::kBf16, narrow::Atan2OfBf16(3 * tiny, 2.0)), tiny);
  EXPECT_EQ(RoundTo(Format::kBf16, narrow::Atan2OfBf16(-3 * tiny, 2.0)), -tiny);
  EXPECT_EQ(RoundTo(Format::kBf16, narrow::Atan2OfBf16(2 * tiny, 2.0)), tiny);
  EXPECT_EQ(BitsOf(narrow::Atan2OfBf16(-0.0, 2.0)), BitsOf(-0.0));
}

}  // namespace
}  // namespace simgrad::precision
