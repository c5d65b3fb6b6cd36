// The order in which a stack sums the rows of blocks gives the tree that is aligned to the ids.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "precision/aligned_sum.h"
#include "precision/arithmetic.h"
#include "sim/backend/block_sums.h"

namespace simgrad::sim {
namespace {

constexpr precision::Format kFormat = precision::Format::kF32;

std::vector<uint64_t> SomeIds(std::mt19937_64& random, size_t count, uint64_t below) {
  std::set<uint64_t> ids;
  while (ids.size() < count) ids.insert(random() % below);
  return {ids.begin(), ids.end()};
}

void ExpectTrees(const std::vector<uint64_t>& ids, std::mt19937_64& random) {
  WorkMeter endless;
  const InstanceWeights over = WeightsOf(ids, {}, {}, endless);
  std::vector<double> leaves;
  for (size_t k = 0; k < ids.size(); ++k) {
    leaves.push_back(static_cast<float>(static_cast<double>(random()) * 0x1p-64 - 0.5));
  }
  const BlockOrder order = OrderOf(over);
  ASSERT_EQ(order.joins.size(), ids.size());
  for (size_t block = 0; block + 1 < order.begin.size(); ++block) {
    precision::AlignedSum tree(1, kFormat);
    std::vector<double> stack;
    for (size_t k = order.begin[block]; k < order.begin[block + 1]; ++k) {
      EXPECT_EQ(over.ids[k] >> BlockSums::kLevel,
                over.ids[order.begin[block]] >> BlockSums::kLevel);
      tree.Add(over.ids[k], std::span(&leaves[k], 1));
      stack.push_back(leaves[k]);
      EXPECT_LE(stack.size(), static_cast<size_t>(BlockOrder::kDepth));
      for (int joins = order.joins[k]; joins > 0; --joins) {
        ASSERT_GE(stack.size(), 2u);
        const double right = stack.back();
        stack.pop_back();
        stack.back() = precision::Add(kFormat, stack.back(), right);
      }
    }
    ASSERT_EQ(stack.size(), 1u);
    EXPECT_EQ(stack[0], tree.Take()[0]);
  }
}

TEST(BlockOrder, GivesTheAlignedTreeOfEveryBlock) {
  std::mt19937_64 random(1);
  for (const size_t count : {1, 2, 3, 17, 255, 256, 257, 700}) {
    for (const uint64_t spread : {1, 2, 9, 400}) {
      ExpectTrees(SomeIds(random, count, count * spread), random);
    }
  }
}

TEST(BlockOrder, OfNoRowsHasNoBlock) {
  const BlockOrder order = OrderOf({});
  EXPECT_EQ(order.begin, std::vector<size_t>{0});
  EXPECT_TRUE(order.joins.empty());
}

}  // namespace
}  // namespace simgrad::sim
