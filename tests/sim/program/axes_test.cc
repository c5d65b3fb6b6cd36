// Elements of a shape, and the axes that a reduction takes.

#include "sim/program/axes.h"

#include <gtest/gtest.h>

namespace simgrad::sim {
namespace {

TEST(Axes, StridesReachEveryElementInRowMajorOrder) {
  const std::vector<int64_t> strides = StridesOf({2, 3, 4});
  int64_t element = 0;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(i * strides[0] + j * strides[1] + k * strides[2], element++);
      }
    }
  }
}

TEST(Axes, AScalarHasNoStridesAndAnEmptyAxisMakesZeroes) {
  EXPECT_TRUE(StridesOf({}).empty());
  EXPECT_EQ(StridesOf({5, 0, 2}), (std::vector<int64_t>{0, 2, 1}));
}

TEST(Axes, OnlyTheNamedAxesAreReduced) {
  Op op;
  op.attributes.axes = {0, 2};
  EXPECT_TRUE(IsReduced(op, 0));
  EXPECT_FALSE(IsReduced(op, 1));
  EXPECT_TRUE(IsReduced(op, 2));
  op.attributes.axes = {};
  EXPECT_FALSE(IsReduced(op, 0));
}

}  // namespace
}  // namespace simgrad::sim
