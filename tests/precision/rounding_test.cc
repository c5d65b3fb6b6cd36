#include "precision/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/environment.h"
#include "tests/precision/format_oracle.h"
#include "tests/precision/hostile_environment.h"
#include "tests/precision/operands.h"
#include "tests/source_tree.h"

namespace simgrad::precision {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr CastRounding kRoundings[] = {CastRounding::kNearestEven, CastRounding::kNearestAway,
                                       CastRounding::kTowardZero, CastRounding::kStochastic};

// The definition by enumeration: all non-negative finite values in order of their encodings, built
// from sign, exponent and significand, and the value that would follow the largest one. Two
// neighbours have at most 12 significant bits together, so their midpoint is exact in double.
class Enumeration {
 public:
  explicit Enumeration(Format format) : traits_(Traits(format)) {
    const uint64_t per_binade = uint64_t{1} << (traits_.precision - 1);
    for (uint64_t code = 0; values_.empty() || values_.back() <= traits_.max_finite; ++code) {
      const uint64_t field = code / per_binade;
      const double significand =
          static_cast<double>(code % per_binade + (field == 0 ? 0 : per_binade));
      const int exponent = traits_.emin + static_cast<int>(field == 0 ? 0 : field - 1);
      values_.push_back(std::ldexp(significand, exponent));
    }
  }

  const std::vector<double>& values() const { return values_; }

  double Round(double x, Overflow overflow, CastRounding rounding, uint32_t random_bits) const {
    if (std::isnan(x)) return x;
    const double magnitude = std::abs(x);
    if (magnitude >= values_.back()) return std::copysign(Beyond(overflow), x);
    const size_t above = static_cast<size_t>(
        std::upper_bound(values_.begin(), values_.end(), magnitude) - values_.begin());
    const double low = values_[above - 1];
    const double high = values_[above];
    const double middle = low + (high - low) / 2;
    bool up = false;
    if (rounding == CastRounding::kNearestEven) {
      up = magnitude > middle || (magnitude == middle && above % 2 == 0);
    } else if (rounding == CastRounding::kNearestAway) {
      up = magnitude >= middle;
    } else if (rounding == CastRounding::kStochastic) {
      // magnitude - low is exact for the sources used: at most 53 bits from the quantum down.
      up = random_bits < std::floor(std::ldexp((magnitude - low) / (high - low), 32));
    }
    const double rounded = up ? high : low;
    return std::copysign(rounded > traits_.max_finite ? Beyond(overflow) : rounded, x);
  }

 private:
  double Beyond(Overflow overflow) const {
    if (overflow == Overflow::kSaturate) return traits_.max_finite;
    return traits_.has_infinity ? kInf : kNan;
  }

  FormatTraits traits_;
  std::vector<double> values_;
};

class EveryFormat : public testing::TestWithParam<Format> {};
class EveryShortFormat : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(kAllFormats),
                         [](const auto& param) { return Traits(param.param).name; });
INSTANTIATE_TEST_SUITE_P(Formats, EveryShortFormat, testing::ValuesIn(kShortFormats),
                         [](const auto& param) { return Traits(param.param).name; });

TEST_P(EveryShortFormat, EncodingsAreTheEnumeration) {
  const FormatTraits traits = Traits(GetParam());
  const Enumeration all(GetParam());
  const uint64_t finite = all.values().size() - 1;
  for (uint64_t code = 0; code < finite; ++code) {
    ASSERT_TRUE(SameBits(Decode(GetParam(), code), all.values()[code])) << code;
    const uint64_t negative = code | uint64_t{1} << (traits.bits - 1);
    ASSERT_TRUE(SameBits(Decode(GetParam(), negative), -all.values()[code])) << code;
  }
  EXPECT_EQ(all.values()[finite - 1], traits.max_finite);
  EXPECT_TRUE(SameBits(Decode(GetParam(), finite), traits.has_infinity ? kInf : kNan));
  for (uint64_t code = finite + 1; code < uint64_t{1} << (traits.bits - 1); ++code) {
    ASSERT_TRUE(SameBits(Decode(GetParam(), code), kNan)) << code;
  }
}

TEST_P(EveryShortFormat, EncodeInvertsDecodeForEveryPattern) {
  const FormatTraits traits = Traits(GetParam());
  for (uint64_t code = 0; code < uint64_t{1} << traits.bits; ++code) {
    const double value = Decode(GetParam(), code);
    const uint64_t want = std::isnan(value) ? traits.canonical_nan : code;
    ASSERT_EQ(Encode(GetParam(), value), want);
  }
}

TEST_P(EveryShortFormat, EveryPatternConvertsCorrectlyToEveryFormat) {
  for (const Format target : kAllFormats) {
    FormatOracle oracle(target);
    for (uint64_t code = 0; code < uint64_t{1} << Traits(GetParam()).bits; ++code) {
      const double value = Decode(GetParam(), code);
      ASSERT_TRUE(SameBits(RoundTo(target, value), oracle.Round(value)))
          << FormatName(target) << " from " << value;
    }
  }
}

// A format narrows another where it lacks one of these: the ends, and all bits of a significand.
std::vector<double> Witnesses(Format format) {
  const FormatTraits traits = Traits(format);
  return {traits.max_finite, std::ldexp(1.0, traits.emin),
          2.0 - std::ldexp(1.0, 1 - traits.precision)};
}

TEST(Narrows, ExactlyWhereAFiniteValueIsLost) {
  for (const Format from : kAllFormats) {
    for (const Format to : kAllFormats) {
      std::vector<double> values = Witnesses(from);
      if (Traits(from).bits <= 16) {
        values = Enumeration(from).values();
        values.pop_back();  // beyond the largest
      }
      const bool loses = std::any_of(values.begin(), values.end(), [&](double x) {
        return RoundTo(to, x, Overflow::kIeee) != x;
      });
      EXPECT_EQ(Narrows(from, to), loses) << FormatName(from) << " to " << FormatName(to);
    }
  }
}

// Around every representable value, every midpoint and the ends: one ulp of f32 and of f64 apart.
TEST_P(EveryShortFormat, EveryMidpointAndItsNeighboursRoundAsTheDefinition) {
  const Enumeration all(GetParam());
  const std::vector<double>& values = all.values();
  std::mt19937 random(7);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const double middle = values[i] + (values[i + 1] - values[i]) / 2;
    for (const double point : {values[i], middle, values[i + 1]}) {
      const float narrow = static_cast<float>(point);
      for (const double x : {point, std::nextafter(point, kInf), std::nextafter(point, 0.0),
                             static_cast<double>(std::nextafter(narrow, INFINITY)),
                             static_cast<double>(std::nextafter(narrow, 0.0f)), -point}) {
        for (const CastRounding rounding : kRoundings) {
          const uint32_t bits = static_cast<uint32_t>(random());
          for (const Overflow overflow : {Overflow::kIeee, Overflow::kSaturate}) {
            ASSERT_TRUE(SameBits(RoundTo(GetParam(), x, overflow, rounding, bits),
                                 all.Round(x, overflow, rounding, bits)))
                << std::hexfloat << x << " " << CastRoundingName(rounding) << " " << bits;
          }
        }
      }
    }
  }
}

// Every exponent of f32 is visited: 9973 is coprime to 2^32 and far below 2^23. All of them with
// SIMGRAD_LONG.
TEST_P(EveryShortFormat, FloatsRoundAsTheDefinition) {
  const Enumeration all(GetParam());
  const uint64_t stride = IsLong() ? 1 : 9973;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += stride) {
    const double x = static_cast<double>(FloatOf(static_cast<uint32_t>(pattern)));
    ASSERT_TRUE(SameBits(RoundTo(GetParam(), x),
                         all.Round(x, Overflow::kIeee, CastRounding::kNearestEven, 0)))
        << std::hexfloat << x;
  }
}

// Casts that ml_dtypes made (tests/data/fp8_casts.py says what a line is). Its NaNs keep their sign.
TEST(Fp8, CastsAreThoseOfMlDtypes) {
  std::ifstream file(tests::TestData("fp8_casts.txt"));
  int casts = 0, overflows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    std::istringstream words(line);
    uint32_t bits = 0, e4m3 = 0, e5m2 = 0;
    words >> std::hex >> bits >> e4m3 >> e5m2;
    const double x = static_cast<double>(FloatOf(bits));
    for (const auto& [format, right] :
         {std::pair(Format::kE4m3, e4m3), std::pair(Format::kE5m2, e5m2)}) {
      const double cast = RoundTo(format, x);
      ASSERT_TRUE(SameBits(cast, Decode(format, right))) << line << " " << FormatName(format);
      if (!std::isnan(cast)) {
        ASSERT_EQ(Encode(format, cast), right) << line;
      }
      ++casts;
      overflows += std::isfinite(x) && !std::isfinite(cast);
    }
  }
  EXPECT_GT(casts, 8'000);
  EXPECT_GT(overflows, 500);
}

TEST_P(EveryFormat, RandomDoublesRoundAsMpfrDoes) {
  FormatOracle oracle(GetParam());
  const FormatTraits traits = Traits(GetParam());
  RandomOperands random(Format::kF64, 11);
  // Half the exponents lie where the format's values are, subnormals and overflow included.
  const int low = traits.emin - 3;
  const int high = std::ilogb(traits.max_finite) + 2;
  for (int i = 0; i < 300000; ++i) {
    double x = random.Any();
    if (i % 2 == 0) {
      const int e = low + static_cast<int>(random.Bits() % static_cast<uint64_t>(high - low));
      x = std::copysign(std::ldexp(1 + std::abs(std::fmod(x, 1.0)), e), x);
    }
    ASSERT_TRUE(SameBits(RoundTo(GetParam(), x), oracle.Round(x))) << std::hexfloat << x;
    if (std::abs(x) > traits.max_finite) continue;  // there MPFR's RNDZ gives the largest value
    ASSERT_TRUE(SameBits(RoundTo(GetParam(), x, Overflow::kIeee, CastRounding::kTowardZero),
                         oracle.Round(x, MPFR_RNDZ)))
        << std::hexfloat << x;
  }
}

// All formats but f64: no double lies between two doubles.
TEST(RoundTo, MidpointsAndTheirNeighboursRoundAsMpfrDoes) {
  for (const Format format : {Format::kF32, Format::kBf16, Format::kF16}) {
    const FormatTraits traits = Traits(format);
    RandomOperands random(format, 13);
    FormatOracle oracle(format);
    for (int i = 0; i < 100000; ++i) {
      const double value = std::abs(random.Any());
      if (!(value < traits.max_finite)) continue;
      const int e =
          value == 0.0 ? traits.min_exponent : std::max(std::ilogb(value), traits.min_exponent);
      const double middle = value + std::ldexp(0.5, e - traits.precision + 1);
      for (const double x : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, kInf)}) {
        ASSERT_TRUE(SameBits(RoundTo(format, x), oracle.Round(x))) << std::hexfloat << x;
      }
    }
  }
}

TEST_P(EveryFormat, EncodingsOfRandomPatternsRoundTrip) {
  RandomOperands random(GetParam(), 17);
  const uint64_t mask =
      Traits(GetParam()).bits == 64 ? ~uint64_t{0} : (uint64_t{1} << Traits(GetParam()).bits) - 1;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t code = random.Bits() & mask;
    const double value = Decode(GetParam(), code);
    ASSERT_EQ(Encode(GetParam(), value),
              std::isnan(value) ? Traits(GetParam()).canonical_nan : code);
    ASSERT_TRUE(SameBits(RoundTo(GetParam(), value), value));
  }
}

TEST_P(EveryFormat, NamesAndCornersSurviveTheirRoundTrip) {
  EXPECT_EQ(FormatFromName(FormatName(GetParam())), GetParam());
  for (const double corner : Corners(GetParam())) {
    EXPECT_TRUE(SameBits(Decode(GetParam(), Encode(GetParam(), corner)), corner)) << corner;
  }
}

TEST(Format, UnknownNamesAreRefused) {
  EXPECT_EQ(FormatFromName("fp16"), std::nullopt);
  EXPECT_EQ(OverflowFromName(""), std::nullopt);
  EXPECT_EQ(CastRoundingFromName("up"), std::nullopt);
  EXPECT_EQ(CastRoundingFromName("stochastic"), CastRounding::kStochastic);
  EXPECT_EQ(OverflowFromName("saturate"), Overflow::kSaturate);
}

// C++'s own float conversion is a second opinion on f32, its decoding included.
TEST(RoundTo, F32IsTheMachinesConversion) {
  std::mt19937_64 random(19);
  for (int i = 0; i < 1000000; ++i) {
    const double x = DoubleOf(random());
    if (std::isnan(x)) continue;
    const float machine = static_cast<float>(x);
    ASSERT_TRUE(SameBits(RoundTo(Format::kF32, x), static_cast<double>(machine)));
    ASSERT_EQ(Encode(Format::kF32, static_cast<double>(machine)), BitsOf(machine));
  }
}

TEST(RoundTo, OverflowThresholdsAreThoseOfTheTable) {
  EXPECT_EQ(RoundTo(Format::kF16, std::nextafter(65520.0, 0.0)), 65504.0);
  EXPECT_EQ(RoundTo(Format::kF16, 65520.0), kInf);
  EXPECT_EQ(RoundTo(Format::kE5m2, std::nextafter(61440.0, 0.0)), 57344.0);
  EXPECT_EQ(RoundTo(Format::kE5m2, -61440.0), -kInf);
  EXPECT_EQ(RoundTo(Format::kE4m3, 464.0), 448.0);
  EXPECT_TRUE(std::isnan(RoundTo(Format::kE4m3, std::nextafter(464.0, kInf))));
  EXPECT_TRUE(std::isnan(RoundTo(Format::kE4m3, kInf)));
  EXPECT_EQ(RoundTo(Format::kBf16, 0x1.fefffffffffffp127), 0x1.fep127);
  EXPECT_EQ(RoundTo(Format::kBf16, 0x1.ffp127), kInf);
}

TEST(RoundTo, SaturatingCastsClampInfinityAndKeepNan) {
  for (const Format format : kAllFormats) {
    const double max = Traits(format).max_finite;
    EXPECT_EQ(RoundTo(format, kInf, Overflow::kSaturate), max);
    EXPECT_EQ(RoundTo(format, -kInf, Overflow::kSaturate), -max);
    EXPECT_TRUE(SameBits(RoundTo(format, -kNan, Overflow::kSaturate), kNan));
  }
}

// Toward zero a value overflows when its truncation lies beyond the largest finite value.
TEST(RoundTo, TowardZeroOverflowsToInfinityUnderIeee) {
  const auto truncate = [](double x) {
    return RoundTo(Format::kF16, x, Overflow::kIeee, CastRounding::kTowardZero);
  };
  EXPECT_EQ(truncate(65535.0), 65504.0);
  EXPECT_EQ(truncate(65536.0), kInf);
}

TEST(RoundTo, EveryNanBecomesTheCanonicalOne) {
  for (const uint64_t nan : {uint64_t{0x7FF0000000000001}, uint64_t{0xFFFFFFFFFFFFFFFF}}) {
    for (const Format format : kAllFormats) {
      EXPECT_EQ(BitsOf(RoundTo(format, DoubleOf(nan))), kDoubleNanBits);
      EXPECT_EQ(Encode(format, DoubleOf(nan)), Traits(format).canonical_nan);
    }
  }
}

// Of the 2^32 random words exactly floor(fraction * 2^32) round up, so the mean is the source.
TEST(RoundTo, StochasticThresholdIsTheTruncatedFraction) {
  const auto round = [](double x, uint32_t bits) {
    return RoundTo(Format::kF16, x, Overflow::kIeee, CastRounding::kStochastic, bits);
  };
  const double ulp = 0x1p-10;
  EXPECT_EQ(round(1 + ulp / 4, 0x3FFFFFFF), 1 + ulp);
  EXPECT_EQ(round(1 + ulp / 4, 0x40000000), 1.0);
  // A fraction below 2^-32 truncates to zero and never goes up.
  EXPECT_EQ(round(1 + ulp * 0x1p-33, 0), 1.0);
  EXPECT_EQ(round(1 + ulp * 0x1p-32, 0), 1 + ulp);
  EXPECT_EQ(round(-(1 + ulp * 0x1p-32), 0), -(1 + ulp));
  // Below the smallest subnormal, 2^-24: the fraction of it counts, however small the source.
  EXPECT_EQ(round(0x1p-56, 0), 0x1p-24);
  EXPECT_EQ(round(0x1p-56, 1), 0.0);
  EXPECT_EQ(round(0x1.fffffffffffffp-57, 0), 0.0);
  EXPECT_EQ(round(5e-324, 0), 0.0);
}

// docs/numerics.md section 11, mistakes that must not return.
TEST(RoundTo, TheMistakesInTheDocumentsStayCorrected) {
  EXPECT_EQ(Decode(Format::kE4m3, 0x08), 0x1p-6);  // smallest normal
  EXPECT_EQ(Decode(Format::kE4m3, 0x01), 0x1p-9);  // smallest subnormal
  EXPECT_EQ(RoundTo(Format::kF16, 1e-7), 0x1p-23);
  EXPECT_EQ(static_cast<float>(RoundTo(Format::kF16, 1e-7)), 1.1920929e-07f);
  EXPECT_EQ(RoundTo(Format::kF16, std::exp(11.09)), 65504.0);
  EXPECT_EQ(RoundTo(Format::kF16, std::exp(11.0902)), kInf);
  // bf16: truncation and adding 0x8000 are both wrong, at 1 + 3/4 ulp and at the tie 1 + 1/2 ulp.
  EXPECT_EQ(RoundTo(Format::kBf16, 1 + 0x1.8p-8), 1 + 0x1p-7);
  EXPECT_EQ(RoundTo(Format::kBf16, 1 + 0x1p-8), 1.0);
  EXPECT_EQ(Encode(Format::kBf16, RoundTo(Format::kBf16, static_cast<double>(FloatOf(0x7FFFFFFF)))),
            0x7FC0u);
}

// "43.75 % of log-uniform values on 1e-8..1e8 are lost in f16": leaving the normal range it is
// (log10(2^-14 / 1e-8) + log10(1e8 / 65520)) / 16 = 43.6 %, with subnormals 22.9 %. A grid of n
// points counts a fraction to within 2 / n for each of its two ends.
TEST(RoundTo, ShareOfLogUniformValuesLostInF16) {
  const int n = 16000;
  int not_normal = 0;
  int lost = 0;
  for (int i = 0; i < n; ++i) {
    const double x = std::pow(10.0, -8 + 16 * (i + 0.5) / n);
    const double rounded = RoundTo(Format::kF16, x);
    lost += rounded == 0.0 || rounded == kInf;
    not_normal += rounded < 0x1p-14 || rounded == kInf;
  }
  EXPECT_NEAR(static_cast<double>(not_normal) / n, 0.436, 0.0005 + 4.0 / n);
  EXPECT_NEAR(static_cast<double>(lost) / n, 0.229, 0.0005 + 4.0 / n);
}

#ifdef SIMGRAD_HOSTILE_ENVIRONMENT
__attribute__((noinline)) double RoundOutOfLine(Format format, double x) {
  volatile double operand = x;  // else a call may move over a change of the environment
  return RoundTo(format, operand);
}

TEST(RoundTo, FlushToZeroAndRoundingModeOfTheCallerDoNotMatter) {
  const double subnormal = DoubleOf(12345);
  double f64, f32, bf16, f16;
  {
    const tests::HostileEnvironment environment;
    f64 = RoundOutOfLine(Format::kF64, subnormal);
    f32 = RoundOutOfLine(Format::kF32, 0x1.8p-149);
    bf16 = RoundOutOfLine(Format::kBf16, 0x1.8p-133);
    f16 = RoundOutOfLine(Format::kF16, 1 + 0x1.8p-11);
  }
  EXPECT_EQ(BitsOf(f64), 12345u);
  EXPECT_EQ(f32, 0x1p-148);
  EXPECT_EQ(bf16, 0x1p-132);
  EXPECT_EQ(f16, 1 + 0x1p-10);
}
#endif

}  // namespace
}  // namespace simgrad::precision
