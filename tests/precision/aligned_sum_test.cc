#include "precision/aligned_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "precision/reduction.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr uint64_t kLastId = ~uint64_t{0};
constexpr size_t kWidth = 3;

// Each id has kWidth numbers: its value, the negated one, and one of the same set reversed.
struct Leaves {
  std::vector<uint64_t> ids;
  std::vector<double> values;
  double At(size_t place, size_t column) const {
    return column == 1 ? -values[place] : values[place] * (column == 2 ? 0.125 : 1.0);
  }
};

Leaves Take(const Leaves& all, uint64_t first, uint64_t last) {
  Leaves part;
  for (size_t i = 0; i < all.ids.size(); ++i) {
    if (all.ids[i] < first || all.ids[i] > last) continue;
    part.ids.push_back(all.ids[i]);
    part.values.push_back(all.values[i]);
  }
  return part;
}

Leaves Random(const std::vector<uint64_t>& ids, uint64_t seed) {
  RandomOperands random(Format::kF32, seed);
  Leaves leaves{ids, {}};
  std::sort(leaves.ids.begin(), leaves.ids.end());
  leaves.ids.erase(std::unique(leaves.ids.begin(), leaves.ids.end()), leaves.ids.end());
  for (size_t i = 0; i < leaves.ids.size(); ++i) leaves.values.push_back(random.Near(1.0));
  return leaves;
}

// The definition: all 64 levels, each a map from id >> level to the node.
double ByLevels(const Leaves& leaves) {
  std::map<uint64_t, double> nodes;
  for (size_t i = 0; i < leaves.ids.size(); ++i) nodes[leaves.ids[i]] = leaves.values[i];
  for (int level = 0; level < 64; ++level) {
    std::map<uint64_t, double> next;
    for (const auto& [index, value] : nodes) {
      const auto [parent, absent] = next.try_emplace(index >> 1, value);
      if (!absent) parent->second = Add(Format::kF32, parent->second, value);
    }
    nodes = next;
  }
  return nodes.begin()->second;
}

std::vector<Leaves> Sets() {
  std::mt19937_64 random(67);
  std::vector<Leaves> sets = {Random({0}, 1), Random({kLastId}, 2), Random({0, kLastId}, 3),
                              Random({5, 6, 7, 8, 9, 300, 301}, 4)};
  std::vector<uint64_t> dense, sparse, clustered;
  for (uint64_t i = 0; i < 100; ++i) {
    dense.push_back(1000 + i);
    sparse.push_back(random());
    clustered.push_back((uint64_t{1} << 63) - 50 + i);
  }
  sets.push_back(Random(dense, 5));
  sets.push_back(Random(sparse, 6));
  sets.push_back(Random(clustered, 7));
  return sets;
}

std::vector<AlignedNode> Cover(const Leaves& leaves, uint64_t first, uint64_t last,
                               Format accumulator = Format::kF32) {
  return AlignedCover(leaves.ids, first, last, kWidth, accumulator,
                      [&](size_t place, std::span<double> numbers) {
                        for (size_t k = 0; k < kWidth; ++k) numbers[k] = leaves.At(place, k);
                      });
}

std::vector<double> Root(const Leaves& leaves, Format accumulator = Format::kF32) {
  return MergeAlignedNodes(Cover(leaves, 0, kLastId, accumulator), kWidth, accumulator);
}

TEST(AlignedSum, IsTheTreeLevelByLevel) {
  for (const Leaves& leaves : Sets()) {
    const double root = ByLevels(leaves);
    EXPECT_EQ(Root(leaves), (std::vector<double>{root, -root, 0.125 * root}));
  }
}

TEST(AlignedSum, OverIdsFromZeroIsThePairwiseOrder) {
  for (const Format accumulator : {Format::kF64, Format::kF32, Format::kBf16, Format::kF16}) {
    for (int n = 1; n < 70; ++n) {
      std::vector<uint64_t> ids;
      for (int i = 0; i < n; ++i) ids.push_back(static_cast<uint64_t>(i));
      Leaves leaves = Random(ids, static_cast<uint64_t>(n));
      for (double& value : leaves.values) value = RoundTo(accumulator, value);
      const double want = Sum(Order::kPairwise, accumulator, accumulator, leaves.values.data(), n);
      EXPECT_TRUE(SameBits(Root(leaves, accumulator)[0], want)) << n;
    }
  }
}

TEST(AlignedSum, RoundsOnceWhatIsWiderThanItsAccumulator) {
  // 1 + 2^-24 + 2^-60 is nearer to the next float; rounded to double first, it would be a tie.
  AlignedSum sum(2, Format::kF32);
  sum.Add(0, std::vector<double>{1.0, 1.0});
  sum.Add(1, std::vector<double>{0x1.0000000010p-24, 0x1p-24});
  EXPECT_EQ(sum.Take(), (std::vector<double>{1.0 + 0x1p-23, 1.0}));
}

TEST(AlignedSum, WhatIsNotFiniteStaysSo) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Format accumulator : {Format::kF64, Format::kF32, Format::kF16}) {
    AlignedSum sum(3, accumulator);
    sum.Add(4, std::vector<double>{kInfinity, kInfinity, std::nan("1")});
    sum.Add(9, std::vector<double>{-kInfinity, 1.0, 1.0});
    const std::vector<double> root = sum.Take();
    EXPECT_TRUE(SameBits(root[0], DoubleOf(kDoubleNanBits)));
    EXPECT_EQ(root[1], kInfinity);
    EXPECT_TRUE(SameBits(root[2], DoubleOf(kDoubleNanBits)));
  }
}

TEST(AlignedSum, EmptyIsPlusZero) {
  AlignedSum sum(1, Format::kF32);
  EXPECT_TRUE(sum.empty());
  EXPECT_TRUE(SameBits(sum.Take()[0], 0.0));
  EXPECT_TRUE(SameBits(MergeAlignedNodes({}, 1, Format::kF32)[0], 0.0));
  EXPECT_TRUE(Cover({}, 0, kLastId).empty());
}

TEST(AlignedCover, ShardsCutAnywhereMergeToTheBitsOfOneSum) {
  std::mt19937_64 random(71);
  for (const Leaves& leaves : Sets()) {
    const std::vector<double> want = Root(leaves);
    for (int trial = 0; trial < 50; ++trial) {
      // Two cuts near ids of the set, so that they fall inside it.
      uint64_t cut = leaves.ids[random() % leaves.ids.size()];
      uint64_t other = leaves.ids[random() % leaves.ids.size()] + 1;
      if (cut > other) std::swap(cut, other);
      std::vector<AlignedNode> nodes;
      const auto add_shard = [&](uint64_t first, uint64_t last) {
        const auto cover = Cover(Take(leaves, first, last), first, last);
        nodes.insert(nodes.begin(), cover.begin(), cover.end());  // in no useful order
      };
      if (cut > 0) add_shard(0, cut - 1);
      if (other > cut) add_shard(cut, other - 1);
      add_shard(other, kLastId);
      ASSERT_EQ(MergeAlignedNodes(nodes, kWidth, Format::kF32), want);
    }
  }
}

TEST(AlignedCover, IsTheMaximalAlignedBlocks) {
  const Leaves leaves = Random({3, 4, 5, 6, 7, 8, 9, 10}, 73);
  const auto cover = Cover(leaves, 3, 10);
  // [3, 10] is 3, 4..7, 8..9, 10.
  ASSERT_EQ(cover.size(), 4u);
  const AlignedBlock blocks[] = {{0, 3}, {2, 1}, {1, 4}, {0, 10}};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(cover[i].block, blocks[i]);
  EXPECT_EQ(cover[0].values[0], leaves.values[0]);
  EXPECT_EQ(BlocksOf(0, kLastId), (std::vector<AlignedBlock>{{64, 0}}));
  EXPECT_EQ(BlocksOf(1, kLastId - 1).size(), 126u);
}

TEST(AlignedCover, TheWholeRangeIsTheRoot) {
  const Leaves leaves = Random({3, 99, 1u << 20}, 79);
  const auto cover = Cover(leaves, 0, kLastId);
  EXPECT_EQ(cover, (std::vector<AlignedNode>{{{64, 0}, Root(leaves)}}));
}

}  // namespace
}  // namespace simgrad::precision
