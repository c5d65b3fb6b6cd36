#include "precision/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "precision/lane.h"
#include "tests/precision/format_oracle.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Order kOrders[] = {Order::kSequential, Order::kReversed, Order::kPairwise,
                             Order::kCompensated, Order::kExact};

// Level by level over a copy, as the definition says it; additions by MPFR.
double PairwiseByLevels(std::vector<double> x, FormatOracle& accumulator) {
  while (x.size() > 1) {
    std::vector<double> next;
    for (size_t i = 0; i < x.size(); i += 2) {
      next.push_back(i + 1 < x.size() ? accumulator.Add(x[i], x[i + 1]) : x[i]);
    }
    x = next;
  }
  return x.front();
}

// Neumaier's listing with MPFR's additions.
double NeumaierByListing(const std::vector<double>& x, FormatOracle& accumulator) {
  double sum = 0.0;
  double correction = 0.0;
  for (const double value : x) {
    const double next = accumulator.Add(sum, value);
    const double error = std::abs(sum) >= std::abs(value)
                             ? accumulator.Add(accumulator.Sub(sum, next), value)
                             : accumulator.Add(accumulator.Sub(value, next), sum);
    correction = accumulator.Add(correction, error);
    sum = next;
  }
  return std::isfinite(sum) ? accumulator.Add(sum, correction) : sum;
}

double ExactByRationals(const std::vector<double>& x, FormatOracle& result) {
  mpq_t sum, term;
  mpq_inits(sum, term, nullptr);
  for (const double value : x) {
    mpq_set_d(term, value);
    mpq_add(sum, sum, term);
  }
  const double rounded = result.Rational(sum);
  mpq_clears(sum, term, nullptr);
  return rounded;
}

double OracleSum(Order order, Format accumulator, Format result, std::vector<double> x) {
  if (x.empty()) return 0.0;
  FormatOracle add(accumulator);
  FormatOracle last(result);
  double total = 0.0;
  switch (order) {
    case Order::kExact:
      return ExactByRationals(x, last);
    case Order::kPairwise:
      return last.Round(PairwiseByLevels(x, add));
    case Order::kCompensated:
      return last.Round(NeumaierByListing(x, add));
    case Order::kReversed:
      std::reverse(x.begin(), x.end());
      break;
    case Order::kSequential:
    case Order::kShuffled:  // of numbers that were permuted before
      break;
  }
  for (const double value : x) total = add.Add(total, value);
  return last.Round(total);
}

// Values of mixed size and sign, finite; every sum of 300 of them stays finite in every format.
std::vector<double> Values(Format role, int n, uint64_t seed) {
  RandomOperands random(role, seed);
  std::vector<double> values;
  while (static_cast<int>(values.size()) < n) {
    const double value = random.Near(0.0625);
    if (std::abs(value) <= 16) values.push_back(value);
  }
  return values;
}

TEST(Sum, IsItsDefinitionForEveryOrderFormatAndLength) {
  const int lengths[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 127, 257};
  for (const Format role : kArithmeticFormats) {
    for (const Format accumulator : kArithmeticFormats) {
      for (const int n : lengths) {
        const std::vector<double> x = Values(role, n, static_cast<uint64_t>(n) + 43);
        for (const Order order : kOrders) {
          ASSERT_TRUE(SameBits(Sum(order, accumulator, role, x.data(), n),
                               OracleSum(order, accumulator, role, x)))
              << OrderName(order) << " " << FormatName(role) << " in " << FormatName(accumulator)
              << " n = " << n;
        }
      }
    }
  }
}

TEST(Sum, StrideTakesEveryStridethElement) {
  const std::vector<double> x = Values(Format::kF32, 90, 47);
  std::vector<double> column;
  for (size_t i = 1; i < x.size(); i += 3) column.push_back(x[i]);
  for (const Order order : kOrders) {
    EXPECT_EQ(Sum(order, Format::kF32, Format::kF32, x.data() + 1, 30, 3),
              Sum(order, Format::kF32, Format::kF32, column.data(), 30));
  }
}

TEST(Sum, EmptyIsPlusZeroAndLeadingZeroIsPlusInAllButPairwise) {
  const double minus_zero = -0.0;
  for (const Order order : kOrders) {
    EXPECT_TRUE(SameBits(Sum(order, Format::kF32, Format::kF32, nullptr, 0), 0.0));
    // The pairwise tree passes a lone leaf through unchanged; the others begin with +0.
    const double want = order == Order::kPairwise ? -0.0 : 0.0;
    EXPECT_TRUE(SameBits(Sum(order, Format::kF32, Format::kF32, &minus_zero, 1), want));
  }
}

TEST(Sum, NanAndInfinitiesPropagateInEveryOrder) {
  for (const Order order : kOrders) {
    const auto sum = [order](std::vector<double> x) {
      return Sum(order, Format::kF32, Format::kF32, x.data(), static_cast<int64_t>(x.size()));
    };
    EXPECT_EQ(sum({1.0, kInf, 2.0}), kInf) << OrderName(order);
    EXPECT_EQ(sum({-kInf, 1.0, -kInf}), -kInf) << OrderName(order);
    EXPECT_TRUE(SameBits(sum({kInf, 1.0, -kInf}), kNan)) << OrderName(order);
    EXPECT_TRUE(SameBits(sum({1.0, kNan, kInf}), kNan)) << OrderName(order);
  }
}

// A running sum that overflows is Inf, or NaN after Infs of both signs, and is returned as it is;
// the exact sum of the same values does not overflow.
TEST(Sum, OverflowOfTheRunningSumIsReturned) {
  const double x[] = {65504.0, 65504.0, -65504.0};
  EXPECT_EQ(Sum(Order::kSequential, Format::kF16, Format::kF16, x, 3), kInf);
  EXPECT_EQ(Sum(Order::kCompensated, Format::kF16, Format::kF16, x, 3), kInf);
  EXPECT_EQ(Sum(Order::kReversed, Format::kF16, Format::kF16, x, 3), 65504.0);
  EXPECT_EQ(Sum(Order::kExact, Format::kF16, Format::kF16, x, 3), 65504.0);
  EXPECT_EQ(Sum(Order::kSequential, Format::kF32, Format::kF16, x, 2), kInf);
}

// docs/numerics.md section 10, the octagon: the order decides on which side of tol the sum lands.
TEST(Sum, OctagonSumsLandOnBothSidesOfTheTolerance) {
  const double tol = 0x1p-10;
  const double p[] = {tol - 0x1p-21, 0x1p-23, 0x1p-23, 0x1p-23, 0x1p-23};
  EXPECT_EQ(Sum(Order::kSequential, Format::kF16, Format::kF16, p, 5), 0.0009760856628417969);
  EXPECT_EQ(Sum(Order::kReversed, Format::kF16, Format::kF16, p, 5), 0.0009765625);
}

// The accumulator narrower than the role: 1 + 2^-8 is the tie of bf16, and 2^-60 breaks it, which
// two roundings (to double, then to bf16) would not see.
TEST(Sum, NarrowAccumulatorRoundsOnce) {
  const double x[] = {0x1p-60, 1 + 0x1p-8};
  EXPECT_EQ(Sum(Order::kSequential, Format::kBf16, Format::kBf16, x, 2), 1 + 0x1p-7);
}

TEST(ExactSum, IsTheRoundedRationalSumOverTheWholeRangeOfDoubles) {
  RandomOperands random(Format::kF64, 53);
  for (const Format result : kAllFormats) {
    FormatOracle oracle(result);
    for (int round = 0; round < 60; ++round) {
      std::vector<double> x;
      for (int i = 0; i < 24; ++i) {
        const double value = random.Any();
        if (!std::isfinite(value)) continue;
        x.push_back(value);
        // Cancels most of it, so that small terms decide.
        if (round % 2 == 0) x.push_back(-std::nextafter(value, 0.0));
        if (round % 3 == 0) x.push_back(-value);
        if (round % 6 == 0) x.push_back(std::nextafter(value, 0.0));
      }
      x.push_back(DoubleOf(1 + random.Bits() % 9));
      ExactSum sum;
      for (const double value : x) sum.Add(value);
      ASSERT_TRUE(SameBits(sum.Result(result), ExactByRationals(x, oracle)));
    }
  }
}

TEST(ExactSum, IntermediateOverflowIsHarmlessAndFinalOverflowIsInfinite) {
  const double max = std::numeric_limits<double>::max();
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) sum.Add(max);
  EXPECT_EQ(sum.Result(Format::kF64), kInf);
  EXPECT_EQ(sum.Result(Format::kE5m2), kInf);
  EXPECT_TRUE(std::isnan(sum.Result(Format::kE4m3)));
  for (int i = 0; i < 999; ++i) sum.Add(-max);
  EXPECT_EQ(sum.Result(Format::kF64), max);
  sum.Add(-max);
  EXPECT_TRUE(SameBits(sum.Result(Format::kF64), 0.0));
  sum.Add(-DoubleOf(1));
  EXPECT_EQ(BitsOf(sum.Result(Format::kF64)), (uint64_t{1} << 63) | 1);
  // A double rounding to f64 first would tie to even: the sum is just above a midpoint of f16.
  ExactSum above;
  above.Add(1 + 0x1p-11);
  above.Add(DoubleOf(1));
  EXPECT_EQ(above.Result(Format::kF16), 1 + 0x1p-10);
}

// The counter over blocks of lanes, as kernels use it, gives each lane the scalar sum.
TEST(PairwiseCounter, BlocksOfLanesGiveTheScalarSums) {
  constexpr int kLanes = 4;
  using Block = std::array<float, kLanes>;
  const auto add = [](const Block& a, const Block& b) {
    Block sum;
    for (int l = 0; l < kLanes; ++l) sum[l] = Lane<Format::kF16>::Add(a[l], b[l]);
    return sum;
  };
  const int n = 37;
  const std::vector<double> x = Values(Format::kF16, n * kLanes, 59);
  PairwiseCounter<Block, 6> tree;
  for (int i = 0; i < n; ++i) {
    Block leaf;
    for (int l = 0; l < kLanes; ++l) leaf[l] = static_cast<float>(x[i * kLanes + l]);
    tree.Push(leaf, add);
  }
  const Block total = tree.Total(add);
  for (int l = 0; l < kLanes; ++l) {
    EXPECT_EQ(total[l], Sum(Order::kPairwise, Format::kF16, Format::kF16, x.data() + l, n, kLanes));
  }
}

TEST(CompensatedSum, OnFloatsIsTheScalarSum) {
  const std::vector<double> x = Values(Format::kF16, 200, 61);
  CompensatedSum<float> sum;
  const auto add = [](float a, float b) { return Lane<Format::kF16>::Add(a, b); };
  for (const double value : x) sum.Push(static_cast<float>(value), add);
  EXPECT_EQ(sum.Total(add), Sum(Order::kCompensated, Format::kF16, Format::kF16, x.data(), 200));
}

TEST(Order, NamesRoundTripAndOthersAreRefused) {
  for (const Order order : kOrders) EXPECT_EQ(OrderFromName(OrderName(order)), order);
  EXPECT_EQ(OrderFromName("random"), std::nullopt);
}

}  // namespace
}  // namespace simgrad::precision
