// The elementary functions against MPFR: every one within its stated bound, everywhere.
//
// The bounds are 0.5 ulp of rounding plus what the algorithm may add to it, and not below what the
// doc comments say was measured; the contract of docs/numerics.md section 2 is 1 ulp in f64 (other
// formats: narrow_elementary_test). SIMGRAD_LONG=1 takes 60 times the random arguments.
#include "precision/elementary.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "precision/narrow_elementary.h"
#include "precision/rounding.h"
#include "tests/environment.h"
#include "tests/precision/elementary_samples.h"
#include "tests/precision/mpfr_oracle.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

using internal::Infinity;
using internal::QuietNan;

int RandomCount(int normal) { return (IsLong() ? normal * 20 : normal / 3) / kSweepShare; }

// The largest error met and where, for one argument or two.
struct Worst {
  double ulps = 0;
  double x = 0;
  double y = 0;
  int64_t count = 0;

  void Meet(double error, double at_x, double at_y = 0) {
    ++count;
    if (error > ulps) *this = {error, at_x, at_y, count};
  }
  void Print(const char* name) const {
    std::printf("%-10s %.5f ulp at (%a, %a), %lld arguments\n", name, ulps, x, y,
                static_cast<long long>(count));
  }
};

struct Unary {
  const char* name;
  double (*function)(double);
  int (*oracle)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
  double bound;
  double low, high;  // where it is neither trivial nor saturated
};

const Unary kUnary[] = {
    {"Exp", Exp, mpfr_exp, 0.501, -746, 710},
    {"Expm1", Expm1, mpfr_expm1, 0.503, -38, 710},
    {"Log", Log, mpfr_log, 0.501, 0, 4},
    {"Log1p", Log1p, mpfr_log1p, 0.501, -1, 4},
    {"Sin", Sin, mpfr_sin, 0.501, -1e6, 1e6},
    {"Cos", Cos, mpfr_cos, 0.501, -1e6, 1e6},
    {"Tanh", Tanh, mpfr_tanh, 0.503, -20, 20},
    {"Sigmoid", Sigmoid, OracleSigmoid, 0.501, -746, 40},
    {"Softplus", Softplus, OracleSoftplus, 0.501, -746, 50},
    {"Tan", Tan, mpfr_tan, 0.501, -1e6, 1e6},
    {"Exp2", Exp2, mpfr_exp2, 0.501, -1076, 1024},
    {"Log2", Log2, mpfr_log2, 0.501, 0, 4},
    {"Asin", Asin, mpfr_asin, 0.502, -1, 1},
    {"Acos", Acos, mpfr_acos, 0.502, -1, 1},
    {"Atan", Atan, mpfr_atan, 0.503, -10, 10},
    {"Sinh", Sinh, mpfr_sinh, 0.51, -711, 711},
    {"Cosh", Cosh, mpfr_cosh, 0.501, -711, 711},
    {"Rsqrt", Rsqrt, OracleRsqrt, 0.501, 0, 4},
    {"Cbrt", Cbrt, mpfr_cbrt, 0.501, -100, 100},
    {"Erf", Erf, mpfr_erf, 0.751, -6, 6},  // less where the result is normal
    {"Erfc", Erfc, OracleErfc, 0.52, -6, 28},
};

std::string NameOf(const ::testing::TestParamInfo<Unary>& info) { return info.param.name; }

class UnaryFunction : public ::testing::TestWithParam<Unary> {
 protected:
  void MeetAll(const Samples& samples) {
    for (double x : samples) Meet(x);
  }
  void Meet(double x) {
    mpfr_set_d(x_.get(), x, MPFR_RNDN);
    GetParam().oracle(exact_.get(), x_.get(), MPFR_RNDN);
    worst_.Meet(ErrorInUlps(GetParam().function(x), exact_.get(), kBinary64), x);
  }

  Real x_;
  Real exact_;
  Worst worst_;
};

INSTANTIATE_TEST_SUITE_P(Elementary, UnaryFunction, ::testing::ValuesIn(kUnary), NameOf);

// Results that many arguments have, and what lies on either side of them.
Samples EndSamples() {
  Samples samples;
  for (double x : {-1075.0, -1074.0, -1022.0, 1024.0, 710.4758600739439, 40.0, 6.0, 6.5, 0.25,
                   26.543258454250695, 27.226017111108365, 28.0, 0x1.6a09e667f3bcdp-1, 0x1p-30}) {
    AddNeighbours(samples, x, 300);
    AddNeighbours(samples, -x, 300);
  }
  // The bounds of the intervals of erfcx.
  for (double x = 0.25; x < 32; x = DoubleOf(BitsOf(x) + (uint64_t{1} << 49))) {
    AddNeighbours(samples, x, 30);
  }
  return samples;
}

TEST_P(UnaryFunction, IsWithinItsBoundOfEveryF64) {
  std::mt19937_64 random(11);
  for (int i = 0; i < RandomCount(60000); ++i) {
    Meet(RandomFinite(random));
    Meet(RandomIn(random, GetParam().low, GetParam().high));
    Meet(RandomIn(random, -1, 1));
    // Around 0 the first interval of each table, and smaller arguments of every size.
    Meet(RandomIn(random, -0.01, 0.01));
    Meet(std::ldexp(RandomIn(random, -1, 1), -static_cast<int>(random() % 64)));
  }
  MeetAll(LandmarkSamples());
  MeetAll(NearOneSamples(RandomCount(10000)));
  MeetAll(ExpIntervalSamples());
  MeetAll(EndSamples());
  worst_.Print(GetParam().name);
  EXPECT_LE(worst_.ulps, GetParam().bound) << std::hexfloat << worst_.x;
}

// Where errors are largest.
const Unary kWorst[] = {
    {"Erf", Erf, mpfr_erf, 0.57, 0.15, 0.25},
    {"Erfc", Erfc, OracleErfc, 0.518, 0.15, 0.25},
    {"Expm1", Expm1, mpfr_expm1, 0.5021, -0x1p-8, 0x1p-8},
    {"Atan", Atan, mpfr_atan, 0.5017, 0.4, 0.6},
};

class WorstInterval : public UnaryFunction {};

INSTANTIATE_TEST_SUITE_P(Elementary, WorstInterval, ::testing::ValuesIn(kWorst), NameOf);

TEST_P(WorstInterval, IsWithinWhatItsCommentSays) {
  std::mt19937_64 random(12);
  for (int i = 0; i < RandomCount(60000); ++i) {
    Meet(RandomIn(random, GetParam().low, GetParam().high));
  }
  for (double x :
       {0x1.c78977890d5f9p-3, 0x1.f9e1e6f3151d2p-3, -0x1.671fd2db40052p-9, 0x1.040b0e095dfcbp-1}) {
    if (x >= GetParam().low && x <= GetParam().high) Meet(x);
  }
  worst_.Print(GetParam().name);
  EXPECT_LE(worst_.ulps, GetParam().bound) << std::hexfloat << worst_.x;
}

class TurnFunction : public UnaryFunction {
 protected:
  Samples samples_;
};

INSTANTIATE_TEST_SUITE_P(Elementary, TurnFunction,
                         ::testing::Values(kUnary[4], kUnary[5], kUnary[9]), NameOf);

TEST_P(TurnFunction, IsWithinItsBoundNextToEveryMultipleOfAQuarterTurn) {
  MeetAll(NearTurnSamples(RandomCount(30000)));
  MeetAll(ClosestToTurnSamples());
  AddNeighbours(samples_, std::ldexp(6381956970095103.0, 797), 3);
  AddNeighbours(samples_, 0x1p+20, 1000);
  MeetAll(samples_);
  worst_.Print(GetParam().name);
  EXPECT_LE(worst_.ulps, GetParam().bound) << std::hexfloat << worst_.x;
}

struct Binary {
  const char* name;
  double (*function)(double, double);
  int (*oracle)(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t);
  double bound;
};

Worst WorstOf(const Binary& binary, const std::vector<Pair>& pairs) {
  Real a;
  Real b;
  Real exact;
  Worst worst;
  for (const Pair& pair : pairs) {
    mpfr_set_d(a.get(), pair.a, MPFR_RNDN);
    mpfr_set_d(b.get(), pair.b, MPFR_RNDN);
    binary.oracle(exact.get(), a.get(), b.get(), MPFR_RNDN);
    const double result = binary.function(pair.a, pair.b);
    worst.Meet(ErrorInUlps(result, exact.get(), kBinary64), pair.a, pair.b);
  }
  worst.Print(binary.name);
  return worst;
}

const Binary kPow = {"Pow", Pow, mpfr_pow, 0.51};
const Binary kAtan2 = {"Atan2", Atan2, mpfr_atan2, 0.503};

TEST(Elementary, PowIsWithinItsBoundOverItsWholeRange) {
  EXPECT_LE(WorstOf(kPow, PowPairs(RandomCount(120000))).ulps, kPow.bound);
}

TEST(Elementary, PowIsWithinItsBoundForBasesNextToOneAndHugeExponents) {
  EXPECT_LE(WorstOf(kPow, PowNearOnePairs(RandomCount(80000))).ulps, kPow.bound);
}

TEST(Elementary, PowIsWithinItsBoundWhereItOverflowsAndUnderflows) {
  EXPECT_LE(WorstOf(kPow, PowEdgePairs(RandomCount(80000))).ulps, kPow.bound);
}

TEST(Elementary, Atan2IsWithinItsBoundInEveryOctantAndForEveryRatio) {
  EXPECT_LE(WorstOf(kAtan2, Atan2Pairs(RandomCount(100000))).ulps, kAtan2.bound);
}

uint64_t PowerOf(uint64_t base, int exponent) {
  uint64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= base;
  return power;
}

TEST(Elementary, PowReturnsRepresentablePowersExactly) {
  for (uint64_t base = 2; base < 3000; ++base) {
    // base^n < 2^53, so the power is a double.
    for (int n = 0; n * std::log2(base) < 52.99; ++n) {
      const double power = static_cast<double>(PowerOf(base, n));
      const double b = static_cast<double>(base);
      ASSERT_EQ(Pow(b, n), power) << base << "^" << n;
      ASSERT_EQ(Pow(-b, n), n % 2 == 0 ? power : -power) << base << "^" << n;
    }
  }
  for (int e = -1074; e <= 1023; ++e) ASSERT_EQ(Pow(2.0, e), std::ldexp(1.0, e)) << e;
  std::mt19937_64 random(17);
  for (int i = 0; i < 100000; ++i) {
    const double x = RandomFinite(random);
    ASSERT_EQ(Pow(x, 1.0), x) << std::hexfloat << x;
    // A quarter of the bits: the fourth power and three halves of the square are doubles.
    const double quarter = static_cast<double>(random() >> 51);
    const double square = quarter * quarter;
    ASSERT_EQ(Pow(square, 0.5), quarter);
    ASSERT_EQ(Pow(square * square, 0.25), quarter);
    ASSERT_EQ(Pow(square, 1.5), square * quarter);
  }
}

const double kInf = Infinity();
const double kNan = QuietNan();

// Equal to the bit, so that signs of zeros and the canonical NaN count.
void ExpectBits(double result, double expected, const char* name, double x, double y = 0) {
  EXPECT_EQ(BitsOf(result), BitsOf(expected))
      << name << " of (" << x << ", " << y << ") is " << result << ", not " << expected;
}

TEST(Elementary, UnarySpecialCasesAreThoseOfAnnexF) {
  const struct {
    double x, exp, expm1, log, log1p, sin, cos, tanh, sigmoid, softplus;
  } kCases[] = {
      {0.0, 1, 0.0, -kInf, 0.0, 0.0, 1, 0.0, 0.5, 0x1.62e42fefa39efp-1},
      {-0.0, 1, -0.0, -kInf, -0.0, -0.0, 1, -0.0, 0.5, 0x1.62e42fefa39efp-1},
      {kInf, kInf, kInf, kInf, kInf, kNan, kNan, 1, 1, kInf},
      {-kInf, 0.0, -1, kNan, kNan, kNan, kNan, -1, 0.0, 0.0},
      {1e308, kInf, kInf, Log(1e308), Log(1e308), Sin(1e308), Cos(1e308), 1, 1, 1e308},
      {-1e308, 0.0, -1, kNan, kNan, -Sin(1e308), Cos(1e308), -1, 0.0, 0.0},
      {0x1p-1074, 1, 0x1p-1074, Log(0x1p-1074), 0x1p-1074, 0x1p-1074, 1, 0x1p-1074, 0.5,
       0x1.62e42fefa39efp-1},
  };
  for (const auto& c : kCases) {
    ExpectBits(Exp(c.x), c.exp, "Exp", c.x);
    ExpectBits(Expm1(c.x), c.expm1, "Expm1", c.x);
    ExpectBits(Log(c.x), c.log, "Log", c.x);
    ExpectBits(Log1p(c.x), c.log1p, "Log1p", c.x);
    ExpectBits(Sin(c.x), c.sin, "Sin", c.x);
    ExpectBits(Cos(c.x), c.cos, "Cos", c.x);
    ExpectBits(Tanh(c.x), c.tanh, "Tanh", c.x);
    ExpectBits(Sigmoid(c.x), c.sigmoid, "Sigmoid", c.x);
    ExpectBits(Softplus(c.x), c.softplus, "Softplus", c.x);
  }
  ExpectBits(Log(1.0), 0.0, "Log", 1);
  ExpectBits(Log(-0x1p-1074), kNan, "Log", -0x1p-1074);
  ExpectBits(Log1p(-1.0), -kInf, "Log1p", -1);
  ExpectBits(Log1p(std::nextafter(-1.0, -2.0)), kNan, "Log1p", std::nextafter(-1.0, -2.0));
}

TEST(Elementary, SpecialCasesOfArcsRootsAndErrorFunctionsAreThoseOfAnnexF) {
  constexpr double kHalfPi = 0x1.921fb54442d18p+0;
  const struct {
    double x, tan, asin, acos, atan, sinh, cosh, exp2, log2, rsqrt, cbrt, erf, erfc;
  } kCases[] = {
      {0.0, 0.0, 0.0, kHalfPi, 0.0, 0.0, 1, 1, -kInf, kInf, 0.0, 0.0, 1},
      {-0.0, -0.0, -0.0, kHalfPi, -0.0, -0.0, 1, 1, -kInf, -kInf, -0.0, -0.0, 1},
      {kInf, kNan, kNan, kNan, kHalfPi, kInf, kInf, kInf, kInf, 0.0, kInf, 1, 0.0},
      {-kInf, kNan, kNan, kNan, -kHalfPi, -kInf, kInf, 0.0, kNan, kNan, -kInf, -1, 2},
      {1, Tan(1.0), kHalfPi, 0.0, kHalfPi / 2, Sinh(1.0), Cosh(1.0), 2, 0.0, 1, 1, Erf(1.0),
       Erfc(1.0)},
      {1e308, Tan(1e308), kNan, kNan, kHalfPi, kInf, kInf, kInf, Log2(1e308), 1e-154, Cbrt(1e308),
       1, 0.0},
      {-1e308, -Tan(1e308), kNan, kNan, -kHalfPi, -kInf, kInf, 0.0, kNan, kNan, -Cbrt(1e308), -1,
       2},
      {0x1p-1074, 0x1p-1074, 0x1p-1074, kHalfPi, 0x1p-1074, 0x1p-1074, 1, 1, -1074, 0x1p+537,
       0x1p-358, 0x1p-1074, 1},
  };
  for (const auto& c : kCases) {
    ExpectBits(Tan(c.x), c.tan, "Tan", c.x);
    ExpectBits(Asin(c.x), c.asin, "Asin", c.x);
    ExpectBits(Acos(c.x), c.acos, "Acos", c.x);
    ExpectBits(Atan(c.x), c.atan, "Atan", c.x);
    ExpectBits(Sinh(c.x), c.sinh, "Sinh", c.x);
    ExpectBits(Cosh(c.x), c.cosh, "Cosh", c.x);
    ExpectBits(Exp2(c.x), c.exp2, "Exp2", c.x);
    ExpectBits(Log2(c.x), c.log2, "Log2", c.x);
    ExpectBits(Rsqrt(c.x), c.rsqrt, "Rsqrt", c.x);
    ExpectBits(Cbrt(c.x), c.cbrt, "Cbrt", c.x);
    ExpectBits(Erf(c.x), c.erf, "Erf", c.x);
    ExpectBits(Erfc(c.x), c.erfc, "Erfc", c.x);
  }
  ExpectBits(Acos(-1.0), 2 * kHalfPi, "Acos", -1);
  for (double beyond : {std::nextafter(1.0, 2.0), -std::nextafter(1.0, 2.0)}) {
    ExpectBits(Asin(beyond), kNan, "Asin", beyond);
    ExpectBits(Acos(beyond), kNan, "Acos", beyond);
  }
}

TEST(Elementary, ExactPowersLogarithmsAndRootsAreExact) {
  for (int e = -1074; e <= 1023; ++e) {
    const double power = std::ldexp(1.0, e);
    ASSERT_EQ(Exp2(e), power);
    ASSERT_EQ(Log2(power), e);
    if (e >= -149 && e <= 127) {
      ASSERT_EQ(RoundTo(Format::kF32, narrow::Log2(power)), e);
    }
    if (e % 2 == 0) {
      ASSERT_EQ(Rsqrt(power), std::ldexp(1.0, -e / 2));
    }
    if (e % 3 == 0) {
      ASSERT_EQ(Cbrt(power), std::ldexp(1.0, e / 3));
    }
  }
  for (double n = 1; n < 200000; ++n) {
    ASSERT_EQ(Cbrt(n * n * n), n);
    ASSERT_EQ(Cbrt(-n * n * n), -n);
    ASSERT_EQ(Rsqrt(n * n), 1.0 / n);
  }
}

TEST(Elementary, EveryNanGivesTheCanonicalNan) {
  for (uint64_t bits : {0x7FF8000000000000u, 0xFFF8000000000000u, 0x7FF0000000000001u,
                        0xFFF4000000000123u, 0x7FFFFFFFFFFFFFFFu}) {
    const double nan = DoubleOf(bits);
    for (const Unary& unary : kUnary) ExpectBits(unary.function(nan), kNan, unary.name, nan);
    for (double other : {0.0, -0.0, 2.0, -1.0, kInf, -kInf, nan}) {
      ExpectBits(Atan2(nan, other), kNan, "Atan2", nan, other);
      ExpectBits(Atan2(other, nan), kNan, "Atan2", other, nan);
      ExpectBits(Pow(nan, other), other == 0.0 ? 1.0 : kNan, "Pow", nan, other);
      ExpectBits(Pow(other, nan), kNan, "Pow", other, nan);
    }
    ExpectBits(Pow(1.0, nan), 1.0, "Pow", 1.0, nan);
  }
}

TEST(Elementary, PowSpecialCasesAreThoseOfIeee754) {
  const struct {
    double x, y, power;
  } kCases[] = {
      {0.0, -3, kInf},        {-0.0, -3, -kInf},
      {0.0, -2, kInf},        {-0.0, -2, kInf},
      {0.0, -2.5, kInf},      {-0.0, -2.5, kInf},
      {0.0, -kInf, kInf},     {-0.0, -kInf, kInf},
      {0.0, 3, 0.0},          {-0.0, 3, -0.0},
      {-0.0, 2, 0.0},         {-0.0, 0.5, 0.0},
      {0.0, kInf, 0.0},       {-1, kInf, 1},
      {-1, -kInf, 1},         {1, kInf, 1},
      {0.5, -kInf, kInf},     {-0.5, -kInf, kInf},
      {2, -kInf, 0.0},        {-2, -kInf, 0.0},
      {0.5, kInf, 0.0},       {-0.5, kInf, 0.0},
      {2, kInf, kInf},        {-2, kInf, kInf},
      {-kInf, -3, -0.0},      {-kInf, -2, 0.0},
      {-kInf, -2.5, 0.0},     {-kInf, 3, -kInf},
      {-kInf, 2, kInf},       {-kInf, 2.5, kInf},
      {kInf, -0.5, 0.0},      {kInf, 0.5, kInf},
      {-2, 0.5, kNan},        {-2, 1.5, kNan},
      {-1, 0.5, kNan},        {-2, 3, -8},
      {-3, -1, -1.0 / 3},     {-1, 0x1p+53, 1},
      {-1, 0x1p+1023, 1},     {-1, 0x1.fffffffffffffp+52, -1},
      {kInf, 0.0, 1},         {0.0, 0.0, 1},
      {-kInf, -0.0, 1},       {-2, 1e300, kInf},
      {-2, -1e300, 0.0},      {0x1p-1074, -2, kInf},
      {-2, -1074, 0x1p-1074}, {-2, -1073, -0x1p-1073},
      {-0x1p-1074, 3, -0.0},  {1e308, 1e308, kInf},
      {2, -1075, 0.0},        {2, 1024, kInf},
  };
  for (const auto& c : kCases) {
    ExpectBits(Pow(c.x, c.y), c.power, "Pow", c.x, c.y);
  }
}

TEST(Elementary, Atan2SpecialCasesAreThoseOfAnnexF) {
  constexpr double kPi = 0x1.921fb54442d18p+1;
  const struct {
    double y, x, angle;
  } kCases[] = {
      {0.0, 0.0, 0.0},
      {0.0, -0.0, kPi},
      {0.0, 1, 0.0},
      {0.0, -1, kPi},
      {0.0, kInf, 0.0},
      {0.0, -kInf, kPi},
      {1, 0.0, kPi / 2},
      {1, -0.0, kPi / 2},
      {1, kInf, 0.0},
      {1, -kInf, kPi},
      {kInf, 1, kPi / 2},
      {kInf, -1, kPi / 2},
      {kInf, kInf, kPi / 4},
      {kInf, 0.0, kPi / 2},
      {1, 1, kPi / 4},
      {1e308, 1e308, kPi / 4},
      {0x1p-1074, 0x1p-1074, kPi / 4},
      {kInf, -kInf, 0x1.2d97c7f3321d2p+1},
      {1, -1, 0x1.2d97c7f3321d2p+1},
      {0x1p-1074, 1e308, 0.0},
      {1e308, 0x1p-1074, kPi / 2},
      {0x1p-1074, 1, 0x1p-1074},
  };
  for (const auto& c : kCases) {
    ExpectBits(Atan2(c.y, c.x), c.angle, "Atan2", c.y, c.x);
    ExpectBits(Atan2(-c.y, c.x), -c.angle, "Atan2", -c.y, c.x);
  }
}

}  // namespace
}  // namespace simgrad::precision
