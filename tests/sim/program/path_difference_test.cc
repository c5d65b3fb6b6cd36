// Rows of paths that differ: which decision is the first, and how many there are.
#include "sim/program/path_difference.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "sim/program/path_pack.h"
#include "sim/program/program.h"

namespace simgrad::sim {
namespace {

using Row = std::vector<uint8_t>;

PathColumn Column(PathKind kind, std::vector<int64_t> shape, std::vector<int32_t> loops,
                  int width) {
  PathColumn column;
  column.kind = kind;
  column.element = kind == PathKind::kTest ? ElementType::kBool : ElementType::kI32;
  column.shape = std::move(shape);
  column.loops = std::move(loops);
  column.width = width;
  return column;
}

PathLayout Layout(std::vector<PathColumn> columns) {
  PathLayout layout;
  layout.columns = std::move(columns);
  PlaceColumns(layout);
  return layout;
}

Row Zeros(const PathLayout& layout) { return Row(static_cast<size_t>(layout.bytes)); }

void Set(const PathLayout& layout, Row& row, size_t place, int64_t element, uint64_t value) {
  const PathColumn& column = layout.columns[place];
  if (column.width == 0) {
    const int64_t bit = column.first + element;
    if (value != 0) row[static_cast<size_t>(bit / 8)] |= static_cast<uint8_t>(1 << bit % 8);
    return;
  }
  for (int k = 0; k < column.width; ++k) {
    row[static_cast<size_t>(column.first + element * column.width + k)] =
        static_cast<uint8_t>(value >> (8 * k));
  }
}

TEST(PathDifference, RowsAlikeHaveNone) {
  const PathLayout layout =
      Layout({Column(PathKind::kTest, {3}, {-1}, 0), Column(PathKind::kCount, {}, {}, 1)});
  Row row = Zeros(layout);
  Set(layout, row, 1, 0, 7);
  const PathDifference difference(layout);
  EXPECT_EQ(difference.First(row.data(), row.data()), DifferingDecision());
  std::vector<uint64_t> counts(2);
  difference.Count(row.data(), row.data(), counts);
  EXPECT_EQ(counts, (std::vector<uint64_t>{0, 0}));
}

TEST(PathDifference, TheFirstColumnIsFirstWhereNoLoopStandsAround) {
  const PathLayout layout =
      Layout({Column(PathKind::kChoice, {2}, {-1}, 4), Column(PathKind::kTest, {9}, {-1}, 0)});
  Row a = Zeros(layout), b = Zeros(layout);
  Set(layout, b, 1, 8, 1);
  const PathDifference difference(layout);
  EXPECT_EQ(difference.First(a.data(), b.data()), (DifferingDecision{1, 8}));
  Set(layout, b, 0, 1, 0x01000200);  // two bytes differ of one number
  EXPECT_EQ(difference.First(a.data(), b.data()), (DifferingDecision{0, 1}));
  std::vector<uint64_t> counts(2);
  difference.Count(a.data(), b.data(), counts);
  EXPECT_EQ(counts, (std::vector<uint64_t>{1, 1}));
}

// A loop of up to three turns (column 0 its count) with a test inside, whose axis is that of the turns.
PathLayout Loop(int32_t loop) {
  return Layout({Column(PathKind::kCount, {}, {}, 1), Column(PathKind::kTest, {3}, {loop}, 0)});
}

TEST(PathDifference, ATestInALoopIsTakenBeforeTheLoopIsLeft) {
  const PathLayout layout = Loop(0);
  Row a = Zeros(layout), b = Zeros(layout);
  Set(layout, a, 0, 0, 2);
  Set(layout, b, 0, 0, 3);
  const PathDifference difference(layout);
  EXPECT_EQ(difference.First(a.data(), b.data()), (DifferingDecision{0, 0}));
  // Turn 2 is the first that one of them does not take: the loop parts before a test in it.
  Set(layout, b, 1, 2, 1);
  EXPECT_EQ(difference.First(a.data(), b.data()), (DifferingDecision{0, 0}));
  Set(layout, b, 1, 1, 1);
  EXPECT_EQ(difference.First(a.data(), b.data()), (DifferingDecision{1, 1}));
}

TEST(PathDifference, AReversedScanBeginsAtItsLastElement) {
  const PathLayout layout = Loop(-2);
  Row a = Zeros(layout), b = Zeros(layout);
  Set(layout, b, 1, 0, 1);
  Set(layout, b, 1, 2, 1);
  EXPECT_EQ(PathDifference(layout).First(a.data(), b.data()), (DifferingDecision{1, 2}));
}

// Against a reading of each element by itself.
TEST(PathDifference, CountsWhatDiffersInEachColumn) {
  std::mt19937_64 random(20261130);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<PathColumn> columns;
    const size_t many = 1 + random() % 5;
    for (size_t i = 0; i < many; ++i) {
      const int width = std::vector<int>{0, 0, 1, 2, 4, 8}[random() % 6];
      const PathKind kind = width == 0 ? PathKind::kTest : PathKind::kChoice;
      columns.push_back(Column(kind, {static_cast<int64_t>(random() % 21)}, {-1}, width));
    }
    const PathLayout layout = Layout(std::move(columns));
    Row a = Zeros(layout), b = Zeros(layout);
    std::vector<uint64_t> expected(many);
    DifferingDecision first;
    for (size_t place = 0; place < many; ++place) {
      for (int64_t k = 0; k < layout.columns[place].shape[0]; ++k) {
        const int width = layout.columns[place].width;
        const uint64_t mask = width == 0 ? 1 : ~uint64_t{0} >> (64 - 8 * width);
        const uint64_t mine = random() & mask;
        const uint64_t other = random() % 4 == 0 ? random() & mask : mine;
        Set(layout, a, place, k, mine);
        Set(layout, b, place, k, other);
        if (mine == other) continue;
        ++expected[place];
        if (first.column < 0) first = {static_cast<int32_t>(place), k};
      }
    }
    const PathDifference difference(layout);
    std::vector<uint64_t> counts(many);
    difference.Count(a.data(), b.data(), counts);
    EXPECT_EQ(counts, expected) << "turn " << turn;
    EXPECT_EQ(difference.First(a.data(), b.data()), first) << "turn " << turn;
  }
}

}  // namespace
}  // namespace simgrad::sim
