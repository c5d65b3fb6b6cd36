// Ranges of states, taken many at a time, are those of StateRange::Note.
#include "sim/backend/compiled/run/state_sample.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "precision/format.h"

namespace simgrad::sim::compiled {
namespace {

template <typename T>
std::vector<T> Values(size_t count, bool with_specials, uint64_t seed) {
  using Bits = std::conditional_t<std::is_same_v<T, double>, uint64_t, uint32_t>;
  using Limits = std::numeric_limits<T>;
  const T specials[] = {T{0},
                        -T{0},
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::quiet_NaN(),
                        -Limits::quiet_NaN(),
                        Limits::denorm_min(),
                        -Limits::denorm_min(),
                        Limits::min(),
                        -Limits::min(),
                        Limits::max(),
                        Limits::lowest()};
  std::mt19937_64 random(seed);
  std::vector<T> values;
  while (values.size() < count) {
    const T any = std::bit_cast<T>(static_cast<Bits>(random()));
    if (with_specials && random() % 4 == 0) {
      values.push_back(specials[random() % std::size(specials)]);
    } else if (with_specials || std::isfinite(any)) {
      values.push_back(any);
    }
  }
  return values;
}

template <typename T>
void ExpectTheRangeOfEach(plan::Carrier carrier, double smallest_normal) {
  for (const size_t count : {0, 1, 2, 7, 16, 31, 32, 33, 1000}) {
    for (const bool with_specials : {false, true}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::vector<T> values = Values<T>(count, with_specials, seed);
        StateRange one_by_one;
        StateRange many;
        // A range that has seen something keeps it.
        for (StateRange* range : {&one_by_one, &many}) range->Note(-0.0, smallest_normal);
        for (T x : values) one_by_one.Note(static_cast<double>(x), smallest_normal);
        NoteStates(reinterpret_cast<const std::byte*>(values.data()), carrier,
                   static_cast<int64_t>(count), smallest_normal, many);
        ASSERT_EQ(many, one_by_one) << count << " values, seed " << seed;
        for (const auto part : {&StateRange::min, &StateRange::max, &StateRange::smallest}) {
          ASSERT_EQ(std::bit_cast<uint64_t>(many.*part), std::bit_cast<uint64_t>(one_by_one.*part))
              << count << " values, seed " << seed;
        }
      }
    }
  }
}

double SmallestNormal(precision::Format format) {
  return std::ldexp(1.0, precision::Traits(format).min_exponent);
}

TEST(StateSample, IsTheRangeOfEachValue) {
  ExpectTheRangeOfEach<float>(plan::Carrier::kF32, SmallestNormal(precision::Format::kF32));
  ExpectTheRangeOfEach<double>(plan::Carrier::kF64, SmallestNormal(precision::Format::kF64));
}

TEST(StateSample, CountsSubnormalsOfTheStatesOwnFormat) {
  ExpectTheRangeOfEach<float>(plan::Carrier::kF32, SmallestNormal(precision::Format::kF16));
}

}  // namespace
}  // namespace simgrad::sim::compiled
