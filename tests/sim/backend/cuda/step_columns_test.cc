// What kernels write as ordered keys and packed extremes is read as the numbers that were meant.
#include "sim/backend/step_columns.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace simgrad::sim::cuda {
namespace {

constexpr uint64_t kNone = ~uint64_t{0};

// As the kernels order doubles.
uint64_t KeyOf(double x) {
  const uint64_t bits = precision::BitsOf(x);
  return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
}

StateColumn EmptyState() {
  const double inf = std::numeric_limits<double>::infinity();
  return {KeyOf(inf), KeyOf(-inf), KeyOf(inf), 0, 0, 0, 0};
}

TEST(StepColumnsTest, RangesOfNumbersOfBothSignsComeBack) {
  StateColumn column = EmptyState();
  EXPECT_EQ(RangeOf(column), StateRange{});
  column.min = KeyOf(-3.5);
  column.max = KeyOf(-0.0);
  column.smallest = KeyOf(0x1p-1074);
  column.subnormals = 2;
  column.infinities = 1;
  const StateRange range = RangeOf(column);
  EXPECT_EQ(range.min, -3.5);
  EXPECT_TRUE(std::signbit(range.max));
  EXPECT_EQ(range.smallest, 0x1p-1074);
  EXPECT_EQ(range.subnormals, 2u);
  EXPECT_EQ(range.infinities, 1u);
}

TEST(StepColumnsTest, AnExtremeNamesItsInstanceByRankAndItsSign) {
  EventColumn column = {};
  column.absolute = {kNone, kNone};
  column.ulps = {kNone, kNone};
  const std::vector<uint64_t> ids = {10, 77, 500};
  EXPECT_EQ(EventOf(column, ids), EventStep{});
  column.absolute = {precision::BitsOf(0.25), MarginKey(1, true, 0)};
  column.ulps = {precision::BitsOf(3.0), MarginKey(2, false, 7)};
  EventStep expected;
  expected.margin.any = true;
  expected.margin.absolute = -0.25;
  expected.margin.absolute_instance = 77;
  expected.margin.ulps = 3.0;
  expected.margin.ulps_instance = 500;
  expected.margin.test = 7;
  EXPECT_EQ(EventOf(column, ids), expected);
}

TEST(StepColumnsTest, ASiteThatDidNothingIsAnEmptyStep) {
  TerminationColumn column = {};
  EXPECT_EQ(TerminationOf(column, {}), TerminationStep{});
}

}  // namespace
}  // namespace simgrad::sim::cuda
