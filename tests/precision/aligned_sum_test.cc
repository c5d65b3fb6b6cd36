#include "precision/aligned_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "precision/reduction.h"
#include "tests/precision/operands.h"

namespace simgrad::precision {
namespace {

constexpr uint64_t kLastId = ~uint64_t{0};

struct Leaves {
  std::vector<uint64_t> ids;
  std::vector<double> values;
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

TEST(AlignedPairwise, IsTheTreeLevelByLevel) {
  for (const Leaves& leaves : Sets()) {
    EXPECT_EQ(AlignedPairwise(leaves.ids, leaves.values, Format::kF32), ByLevels(leaves));
  }
}

TEST(AlignedPairwise, OverIdsFromZeroIsThePairwiseOrder) {
  for (int n = 1; n < 70; ++n) {
    std::vector<uint64_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(static_cast<uint64_t>(i));
    const Leaves leaves = Random(ids, static_cast<uint64_t>(n));
    EXPECT_EQ(AlignedPairwise(leaves.ids, leaves.values, Format::kF32),
              Sum(Order::kPairwise, Format::kF32, Format::kF32, leaves.values.data(), n));
  }
}

TEST(AlignedPairwise, EmptyIsPlusZero) {
  EXPECT_TRUE(SameBits(AlignedPairwise({}, {}, Format::kF32), 0.0));
  EXPECT_TRUE(SameBits(MergeAlignedNodes({}, Format::kF32), 0.0));
  EXPECT_TRUE(AlignedCover({}, {}, 0, kLastId, Format::kF32).empty());
}

TEST(AlignedCover, ShardsCutAnywhereMergeToTheBitsOfOneSum) {
  std::mt19937_64 random(71);
  for (const Leaves& leaves : Sets()) {
    const double want = AlignedPairwise(leaves.ids, leaves.values, Format::kF32);
    for (int trial = 0; trial < 50; ++trial) {
      // Two cuts near ids of the set, so that they fall inside it.
      uint64_t cut = leaves.ids[random() % leaves.ids.size()];
      uint64_t other = leaves.ids[random() % leaves.ids.size()] + 1;
      if (cut > other) std::swap(cut, other);
      std::vector<AlignedNode> nodes;
      const auto add_shard = [&](uint64_t first, uint64_t last) {
        const Leaves shard = Take(leaves, first, last);
        const auto cover = AlignedCover(shard.ids, shard.values, first, last, Format::kF32);
        nodes.insert(nodes.begin(), cover.begin(), cover.end());  // in no useful order
      };
      if (cut > 0) add_shard(0, cut - 1);
      if (other > cut) add_shard(cut, other - 1);
      add_shard(other, kLastId);
      ASSERT_EQ(MergeAlignedNodes(nodes, Format::kF32), want);
    }
  }
}

TEST(AlignedCover, IsTheMaximalAlignedBlocks) {
  const Leaves leaves = Random({3, 4, 5, 6, 7, 8, 9, 10}, 73);
  const auto cover = AlignedCover(leaves.ids, leaves.values, 3, 10, Format::kF32);
  // [3, 10] is 3, 4..7, 8..9, 10.
  ASSERT_EQ(cover.size(), 4u);
  const int levels[] = {0, 2, 1, 0};
  const uint64_t indices[] = {3, 1, 4, 10};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(cover[i].level, levels[i]);
    EXPECT_EQ(cover[i].index, indices[i]);
  }
  EXPECT_EQ(cover[0].value, leaves.values[0]);
}

TEST(AlignedCover, TheWholeRangeIsTheRoot) {
  const Leaves leaves = Random({3, 99, 1u << 20}, 79);
  const auto cover = AlignedCover(leaves.ids, leaves.values, 0, kLastId, Format::kF32);
  const double root = AlignedPairwise(leaves.ids, leaves.values, Format::kF32);
  EXPECT_EQ(cover, (std::vector<AlignedNode>{{64, 0, root}}));
}

}  // namespace
}  // namespace simgrad::precision
