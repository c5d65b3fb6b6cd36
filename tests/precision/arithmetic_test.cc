#include "precision/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "precision/next_after.h"
#include "tests/precision/format_oracle.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr int kRandomCases = 200000;

class Arithmetic : public testing::TestWithParam<Format> {
 protected:
  void CheckPair(double a, double b) {
    ASSERT_TRUE(SameBits(Add(GetParam(), a, b), oracle_.Add(a, b))) << Show("+", a, b);
    ASSERT_TRUE(SameBits(Sub(GetParam(), a, b), oracle_.Sub(a, b))) << Show("-", a, b);
    ASSERT_TRUE(SameBits(Mul(GetParam(), a, b), oracle_.Mul(a, b))) << Show("*", a, b);
    ASSERT_TRUE(SameBits(Div(GetParam(), a, b), oracle_.Div(a, b))) << Show("/", a, b);
  }
  void CheckFma(double a, double b, double c) {
    ASSERT_TRUE(SameBits(Fma(GetParam(), a, b, c), oracle_.Fma(a, b, c)))
        << Show("*", a, b) << " + " << c;
  }
  static std::string Show(const char* operation, double a, double b) {
    std::ostringstream text;
    text << std::hexfloat << a << " " << operation << " " << b;
    return text.str();
  }

  FormatOracle oracle_{GetParam()};
  RandomOperands random_{GetParam(), 29};
};

INSTANTIATE_TEST_SUITE_P(Formats, Arithmetic, testing::ValuesIn(kArithmeticFormats),
                         [](const auto& param) { return Traits(param.param).name; });

TEST_P(Arithmetic, CornersAreCorrectlyRounded) {
  const std::vector<double> corners = Corners(GetParam());
  for (const double a : corners) {
    ASSERT_TRUE(SameBits(Sqrt(GetParam(), a), oracle_.Sqrt(a))) << a;
    for (const double b : corners) {
      CheckPair(a, b);
      for (const double c : corners) CheckFma(a, b, c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Arithmetic, RandomOperandsAreCorrectlyRounded) {
  for (int i = 0; i < kRandomCases && !HasFatalFailure(); ++i) {
    const double a = random_.Any();
    const double b = i % 2 == 0 ? random_.Any() : random_.Near(a);
    CheckPair(a, b);
    ASSERT_TRUE(SameBits(Sqrt(GetParam(), std::abs(a)), oracle_.Sqrt(std::abs(a))));
  }
}

TEST_P(Arithmetic, RandomFmaIsCorrectlyRounded) {
  for (int i = 0; i < kRandomCases && !HasFatalFailure(); ++i) {
    const double a = random_.Any();
    const double b = i % 3 == 0 ? random_.Any() : random_.Near(1.0);
    const double c = i % 3 == 2 ? random_.Any() : random_.Near(a * b);
    CheckFma(a, b, c);
    CheckFma(a, b, -RoundTo(GetParam(), a * b));  // the rounding error of the product
  }
}

// a * b is the midpoint of two neighbours and c decides, however small: where a wider carrier that
// rounds to nearest first loses c and ties to even.
TEST_P(Arithmetic, FmaSeesTheSmallestAddendBesideAMidpoint) {
  const FormatTraits traits = Traits(GetParam());
  for (int i = 0; i < kRandomCases / 10 && !HasFatalFailure(); ++i) {
    // An odd integer of p + 1 bits, 3 * (an integer of p - 1 bits), over 2^p.
    const uint64_t low = (uint64_t{1} << (traits.precision + 1)) / 6;
    const uint64_t span = (uint64_t{1} << (traits.precision - 1)) - low;
    const uint64_t third = (low + random_.Bits() % span) | 1;
    const double b = std::ldexp(static_cast<double>(third), -traits.precision);
    for (const int exponent : {traits.emin, traits.min_exponent, -traits.precision - 2}) {
      const double c = std::ldexp(1.0, exponent);
      CheckFma(3.0, b, c);
      CheckFma(3.0, b, -c);
      CheckFma(-3.0, b, c);
    }
  }
}

// Exact rationals: a - b * floor(a / b), rounded once; a zero has the sign of b.
TEST_P(Arithmetic, ModIsTheFlooredRemainderRoundedOnce) {
  mpq_t qa, qb, quotient;
  mpq_inits(qa, qb, quotient, nullptr);
  mpz_t floor;
  mpz_init(floor);
  for (int i = 0; i < 20000; ++i) {
    const double a = random_.Any();
    const double b = i % 2 == 0 ? random_.Near(a) : random_.Any();
    if (!std::isfinite(a) || !std::isfinite(b) || b == 0.0) continue;
    mpq_set_d(qa, a);
    mpq_set_d(qb, b);
    mpq_div(quotient, qa, qb);
    mpz_fdiv_q(floor, mpq_numref(quotient), mpq_denref(quotient));
    mpq_set_z(quotient, floor);
    mpq_mul(quotient, quotient, qb);
    mpq_sub(qa, qa, quotient);
    const double want = mpq_sgn(qa) == 0 ? std::copysign(0.0, b) : oracle_.Rational(qa);
    ASSERT_TRUE(SameBits(Mod(GetParam(), a, b), want)) << Show("mod", a, b);
  }
  mpz_clear(floor);
  mpq_clears(qa, qb, quotient, nullptr);
}

template <Format F>
void ExpectFmod(double a, double b) {
  if (!IsModerateQuotient<F>(a, b)) return;
  ASSERT_TRUE(SameBits(FmodOfModerate<F>(a, b), std::fmod(a, b))) << std::hexfloat << a << " " << b;
}

// Multiples of b, and what lies just below and above them, are where a quotient rounds wrongly.
template <Format F>
void ExpectFmods() {
  RandomOperands random(F, 47);
  const double inf = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 200'000; ++i) {
    const double b = random.Any();
    ExpectFmod<F>(random.Any(), b);
    ExpectFmod<F>(random.Near(b), b);
    const double factor = std::floor(std::exp2((i % 530) / 10.0));
    const double multiple = RoundTo(F, factor * b);
    for (const double a : {multiple, NextAfter(F, multiple, inf), NextAfter(F, multiple, -inf)}) {
      ExpectFmod<F>(a, b);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_FALSE(IsModerateQuotient<F>(inf, 1.0) || IsModerateQuotient<F>(1.0, inf));
  EXPECT_FALSE(IsModerateQuotient<F>(1.0, 0.0) || IsModerateQuotient<F>(NAN, 1.0));
  EXPECT_TRUE(IsModerateQuotient<F>(0.0, 1.0) && IsModerateQuotient<F>(-3.0, 2.0));
}

TEST(FmodOfModerateQuotients, IsExact) {
  ExpectFmods<Format::kF64>();
  ExpectFmods<Format::kF32>();
  ExpectFmods<Format::kBf16>();
  ExpectFmods<Format::kF16>();
}

TEST_P(Arithmetic, ModAtZeroAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(Mod(GetParam(), 1.0, 0.0)));
  EXPECT_TRUE(std::isnan(Mod(GetParam(), inf, 2.0)));
  EXPECT_EQ(Mod(GetParam(), 3.0, inf), 3.0);
  EXPECT_EQ(Mod(GetParam(), -3.0, inf), inf);
  EXPECT_EQ(Mod(GetParam(), -3.0, 2.0), 1.0);
  EXPECT_EQ(Mod(GetParam(), 3.0, -2.0), -1.0);
  EXPECT_TRUE(SameBits(Mod(GetParam(), -4.0, 2.0), 0.0));
  EXPECT_TRUE(SameBits(Mod(GetParam(), 4.0, -2.0), -0.0));
}

// Add serves accumulators narrower than what they add: operands of f64, result of the format.
TEST_P(Arithmetic, AddAndSubAreRightForOperandsWiderThanTheFormat) {
  RandomOperands wide(Format::kF64, 31);
  const FormatTraits traits = Traits(GetParam());
  for (int i = 0; i < kRandomCases && !HasFatalFailure(); ++i) {
    const double base = random_.Near(1.0);
    if (base == 0.0 || !std::isfinite(base)) continue;  // it has no midpoint beside it
    const double middle = base + std::ldexp(0.5, std::ilogb(base) - traits.precision + 1);
    const double b =
        i % 2 == 0 ? std::ldexp(1.0, -static_cast<int>(wide.Bits() % 1000)) : wide.Near(middle);
    ASSERT_TRUE(SameBits(Add(GetParam(), middle, b), oracle_.Add(middle, b)))
        << Show("+", middle, b);
    ASSERT_TRUE(SameBits(Sub(GetParam(), middle, b), oracle_.Sub(middle, b)))
        << Show("-", middle, b);
  }
}

// docs/numerics.md section 2, counter-examples.
TEST(CounterExample, F16FmaThroughF32IsWrongAndOursIsRight) {
  EXPECT_EQ(Fma(Format::kF16, 3.0, 683.0 / 2048, 0x1p-24), 1.0009765625);
  const float through = std::fma(3.0f, 683.0f / 2048, 0x1p-24f);
  EXPECT_EQ(RoundTo(Format::kF16, static_cast<double>(through)), 1.0);
}

TEST(CounterExample, E4m3AddThroughBf16IsWrongAndOursIsRight) {
  EXPECT_EQ(Add(Format::kE4m3, 0.029296875, 0.5625), 0.5625);
  EXPECT_EQ(RoundTo(Format::kE4m3, RoundTo(Format::kBf16, 0.029296875 + 0.5625)), 0.625);
}

TEST(CounterExample, RoundingTowardZeroThroughF32IsWrongForF16) {
  const double exact = 2048 - 0x1p-24;
  const auto truncate = [](double x) {
    return RoundTo(Format::kF16, x, Overflow::kIeee, CastRounding::kTowardZero);
  };
  EXPECT_EQ(truncate(exact), 2047.0);
  EXPECT_EQ(truncate(static_cast<double>(static_cast<float>(exact))), 2048.0);
}

}  // namespace
}  // namespace simgrad::precision
