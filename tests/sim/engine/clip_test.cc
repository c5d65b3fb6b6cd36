// Clipping to a norm, against the same written with long arithmetic.
#include "sim/engine/clip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "precision/rounding.h"

namespace simgrad::sim {
namespace {

using precision::Format;

Tensor Row(Format format, const std::vector<double>& numbers) {
  Tensor row = Tensor::Zeros(DTypeOf(format), {static_cast<int64_t>(numbers.size())});
  for (size_t k = 0; k < numbers.size(); ++k) row.Set(static_cast<int64_t>(k), numbers[k]);
  return row;
}

double Clip(double most, Format format, std::vector<Tensor>& rows) {
  std::vector<Tensor*> gradients;
  for (Tensor& row : rows) gradients.push_back(&row);
  WorkMeter meter;
  return ClipToNorm(most, format, gradients, meter);
}

TEST(ClipToNorm, ShortensWhatIsLonger) {
  std::vector<Tensor> rows = {Row(Format::kF64, {3.0}), Row(Format::kF64, {0.0, -4.0})};
  EXPECT_EQ(Clip(6.0, Format::kF64, rows), 5.0);
  EXPECT_EQ(rows[1].Get(1), -4.0);
  EXPECT_EQ(Clip(1.0, Format::kF64, rows), 5.0);
  const double factor = 1.0 / (5.0 + 1e-6);
  EXPECT_EQ(rows[0].Get(0), 3.0 * factor);
  EXPECT_EQ(rows[1].Get(0), 0.0);
  EXPECT_EQ(rows[1].Get(1), -4.0 * factor);
}

TEST(ClipToNorm, NumbersOfAnySizeHaveANorm) {
  for (const double size : {1e-320, 1e-200, 1e200, 1e308}) {
    std::vector<Tensor> rows = {Row(Format::kF64, {size, -size})};
    const double norm = Clip(std::numeric_limits<double>::infinity(), Format::kF64, rows);
    EXPECT_NEAR(norm / size, std::sqrt(2.0), 1e-3) << size;
    EXPECT_EQ(rows[0].Get(0), size);
  }
  std::vector<Tensor> none = {Row(Format::kF64, {}), Row(Format::kF64, {0.0, -0.0})};
  EXPECT_EQ(Clip(1.0, Format::kF64, none), 0.0);
}

// The sum of squares is exact: a sum in any order of additions would not be the same for all.
TEST(ClipToNorm, NoOrderChangesABit) {
  std::mt19937_64 random(3);
  std::vector<double> numbers(1000);
  for (double& x : numbers) {
    x = std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 40));
  }
  std::vector<Tensor> rows = {Row(Format::kF64, numbers)};
  const double norm = Clip(1e-3, Format::kF64, rows);
  for (int turn = 0; turn < 20; ++turn) {
    std::shuffle(numbers.begin(), numbers.end(), random);
    std::vector<Tensor> turned = {Row(Format::kF64, numbers)};
    ASSERT_EQ(Clip(1e-3, Format::kF64, turned), norm);
  }
}

TEST(ClipToNorm, WhatIsShortenedIsRoundedToTheFormat) {
  for (const Format format : {Format::kF32, Format::kBf16, Format::kF16}) {
    std::vector<Tensor> rows = {Row(format, {1.5, 2.0, -0.25})};
    const double norm = Clip(1.0, format, rows);
    EXPECT_EQ(norm, std::sqrt(1.5 * 1.5 + 4.0 + 0.0625));
    const double factor = 1.0 / (norm + 1e-6);
    EXPECT_EQ(rows[0].Get(0), precision::RoundTo(format, 1.5 * factor));
    EXPECT_EQ(rows[0].Get(2), precision::RoundTo(format, -0.25 * factor));
  }
}

TEST(ClipToNorm, WhatIsNotFiniteStays) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<Tensor> rows = {Row(Format::kF64, {1e9, bad})};
    EXPECT_FALSE(std::isfinite(Clip(1.0, Format::kF64, rows)));
    EXPECT_EQ(rows[0].Get(0), 1e9);
  }
}

}  // namespace
}  // namespace simgrad::sim
