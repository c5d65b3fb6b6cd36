// The record of a whole field of cotangents is that of its numbers one by one.

#include "sim/backend/compiled/group/cotangent_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "precision/selection.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::sim::compiled {
namespace {

using precision::Format;

template <typename T>
std::vector<T> Numbers(size_t count, int exponents, std::mt19937_64& random) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T{0},
                       -T{0},
                       Limits::max(),
                       Limits::lowest(),
                       Limits::min(),
                       Limits::denorm_min(),
                       -Limits::min(),
                       std::nextafter(Limits::min(), T{0}),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN()};
  std::vector<T> numbers;
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random() % (2 * exponents + 1)) - exponents;
    const T mantissa = T{1} + static_cast<T>(random() % 1024) / 1024;
    const T x = std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, exponent);
    numbers.push_back(random() % 8 == 0 ? special[random() % std::size(special)] : x);
  }
  return numbers;
}

template <typename T>
void Compare(Format format, int exponents) {
  std::mt19937_64 random(7);
  const double normal = precision::DoublePowerOfTwo(precision::Traits(format).min_exponent);
  for (size_t count : {0, 1, 5, 16, 33, 1023, 1024, 1025, 3000}) {
    for (bool masked : {false, true}) {
      const std::vector<T> numbers = Numbers<T>(count, exponents, random);
      std::vector<uint32_t> present;
      for (size_t i = 0; i < count; ++i) present.push_back(random() % 3 == 0 ? 0 : ~uint32_t{0});
      BackwardStep expected;
      unsigned long long expected_under = 3;
      for (size_t i = 0; i < count; ++i) {
        if (masked && present[i] == 0) continue;
        const double x = std::abs(static_cast<double>(numbers[i]));
        expected_under += x != 0 && x < normal ? 1 : 0;
        if (std::isfinite(x)) {
          expected.largest = std::max(expected.largest, x);
          ++expected.exponents[static_cast<size_t>(ExponentBucket(x))];
        } else {
          ++expected.nonfinite;
        }
      }
      BackwardColumn column{};
      unsigned long long under = 3;  // what was counted before stays
      TakeCotangents(&column, &under, numbers.data(), masked ? present.data() : nullptr,
                     static_cast<int64_t>(count), static_cast<int32_t>(format));
      EXPECT_EQ(std::bit_cast<double>(uint64_t{column.largest}), expected.largest) << count;
      EXPECT_EQ(column.nonfinite, expected.nonfinite) << count;
      EXPECT_EQ(under, expected_under) << count;
      for (size_t k = 0; k < kExponentBuckets; ++k) {
        EXPECT_EQ(column.exponents[k], expected.exponents[k]) << count << " bucket " << k;
      }
    }
  }
}

TEST(CotangentRecord, IsThatOfTheNumbersOneByOne) {
  Compare<float>(Format::kF32, 3);
  Compare<float>(Format::kF32, 120);
  Compare<float>(Format::kBf16, 120);
  Compare<float>(Format::kF16, 20);
  Compare<float>(Format::kE4m3, 12);
  Compare<float>(Format::kE5m2, 20);
  Compare<double>(Format::kF64, 5);
  Compare<double>(Format::kF64, 1000);
}

TEST(CotangentRecord, AddsToWhatTheColumnHolds) {
  const std::vector<float> numbers = {1.0f, -4.0f};
  BackwardColumn column{};
  column.largest = std::bit_cast<uint64_t>(8.0);
  column.exponents[17] = 5;
  unsigned long long under = 0;
  TakeCotangents(&column, &under, numbers.data(), nullptr, 2, static_cast<int32_t>(Format::kF32));
  EXPECT_EQ(std::bit_cast<double>(uint64_t{column.largest}), 8.0);
  EXPECT_EQ(column.exponents[17], 7u);
}

}  // namespace
}  // namespace simgrad::sim::compiled
