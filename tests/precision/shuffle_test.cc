// Permutations of shuffled sums: known ones, their fairness, and the order of a policy as text.
#include "precision/shuffle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "precision/hash.h"
#include "precision/policy.h"

namespace simgrad::precision {
namespace {

// Made by another implementation of docs/numerics.md sections 3 and 4, in Python with integers.
TEST(Shuffled, GivesTheDocumentedPermutations) {
  using Permutation = std::vector<int64_t>;
  EXPECT_EQ(Shuffled(7, 0, 9), (Permutation{6, 1, 3, 0, 5, 2, 4, 8, 7}));
  EXPECT_EQ(Shuffled(8, 0, 9), (Permutation{0, 3, 2, 8, 6, 1, 7, 4, 5}));
  EXPECT_EQ(Shuffled(7, Fnv1a64("projection"), 9), (Permutation{8, 3, 5, 6, 4, 1, 2, 7, 0}));
  EXPECT_EQ(Shuffled(7, 0, 10), (Permutation{1, 9, 2, 5, 8, 6, 3, 7, 4, 0}));
  EXPECT_EQ(Shuffled(7, 0, 0), Permutation{});
  EXPECT_EQ(Shuffled(7, 0, 1), Permutation{0});
}

TEST(Shuffled, HoldsEveryPlaceOnce) {
  for (const int64_t n : {2, 3, 64, 1000, 65537}) {
    std::vector<int64_t> places = Shuffled(3, 5, n);
    std::sort(places.begin(), places.end());
    std::vector<int64_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(places, all) << n;
  }
}

// Each of the 24 permutations of four comes 500 times among 12000 seeds; the standard deviation of a
// count is below sqrt(500), and five of it are exceeded by one of 24 counts once in 70,000 runs.
TEST(Shuffled, IsFair) {
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t seed = 0; seed < 12000; ++seed) ++counts[Shuffled(seed, 0, 4)];
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [permutation, count] : counts) EXPECT_NEAR(count, 500, 5 * std::sqrt(500.0));
}

TEST(SumOrder, IsTextAndBack) {
  for (const SumOrder& order :
       {SumOrder(Order::kSequential), SumOrder(Order::kReversed), SumOrder(Order::kPairwise),
        SumOrder(Order::kCompensated), SumOrder(Order::kExact), SumOrder(Order::kShuffled, 0),
        SumOrder(Order::kShuffled, 7), SumOrder(Order::kShuffled, ~uint64_t{0})}) {
    EXPECT_EQ(SumOrderFromText(TextOf(order)), order) << TextOf(order);
  }
  EXPECT_EQ(TextOf(SumOrder(Order::kShuffled, 7)), "shuffled(7)");
  EXPECT_EQ(TextOf(Order::kPairwise), "pairwise");
}

TEST(SumOrder, OtherTextsAreNone) {
  for (const char* text :
       {"", "shuffled", "shuffled(", "shuffled()", "shuffled(-1)", "shuffled( 7)", "shuffled(7",
        "shuffled(7))", "shuffled(1.5)", "shuffled(18446744073709551616)", "pairwise(7)"}) {
    EXPECT_EQ(SumOrderFromText(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace simgrad::precision
