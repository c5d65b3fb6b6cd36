// The pair of reals that decided a choice, of programs that run once.
#include "sim/program/choices.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using Numbers = std::vector<double>;
using Pair = std::pair<Numbers, Numbers>;
using Write = std::function<Var(Builder& b, Var x)>;

Op LastOf(Builder& b) { return b.program().step.ops.back(); }

// What the test beside the operation that `write` makes last compares.
Pair PairOf(const Shape& shape, const Numbers& x, const Write& write) {
  Builder b("choice");
  const Var state = b.State("x", shape);
  write(b, state);
  b.SetNext({state});
  Program& program = b.program();
  const Op op = LastOf(b);
  program.step.ops.pop_back();
  PassBudget budget;
  const bool is_whole = !program.step.ops.empty() && op.code == kConvert;
  std::optional<Rounding> whole;
  if (is_whole) whole = {program.step.ops.back().code, program.step.ops.back().operands[0]};
  WriteChoice(program, op, whole, "chosen", TestKind::kEvent, program.step.ops, budget);
  const Op& test = program.step.ops.back();
  EXPECT_TRUE(IsTest(test));
  program.exports = {{"above", test.operands[test.operands.size() - 2], true},
                     {"below", test.operands.back(), true}};
  const auto lowered = tests::LowerForGradient(program, tests::PolicyOf({.preset = "f64"}), "");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*lowered, 1, 1);
  work.batch.inputs[0] = tests::Shared(x, shape);
  work.options.record_exports = {0, 1};
  struct Exports : Observer {
    void OnForward(const ForwardChunk& chunk) override { exports = chunk.exports; }
    std::vector<Tensor> exports;
  } observer;
  const auto result = tests::Execute(std::move(work), observer);
  EXPECT_TRUE(result.ok()) << result.status();
  Pair pair;
  if (observer.exports.size() != 2) return pair;
  for (int64_t k = 0; k < observer.exports[0].count(); ++k) {
    pair.first.push_back(observer.exports[0].Get(k));
    pair.second.push_back(observer.exports[1].Get(k));
  }
  return pair;
}

Write Extreme(OpCode code, int64_t axis) {
  return [=](Builder& b, Var x) { return b.Do(code, {x}, {.axes = {axis}}); };
}
Write Of(OpCode code) {
  return [=](Builder& b, Var x) { return b.Do(code, {x}); };
}
Write To(ElementType type) {
  return [=](Builder& b, Var x) { return b.Convert(x, type); };
}

TEST(Choices, OfArgmaxTheWinnerIsAboveTheRunnerUp) {
  EXPECT_EQ(PairOf({3}, {1, 5, 3}, Extreme(kArgmax, 0)), (Pair{{5}, {3}}));
  EXPECT_EQ(PairOf({3}, {5, 1, 3}, Extreme(kArgmax, 0)), (Pair{{5}, {3}}));
  EXPECT_EQ(PairOf({3}, {5, 1, 5}, Extreme(kArgmax, 0)), (Pair{{5}, {5}}));
}

TEST(Choices, OfArgminTheRunnerUpIsAboveTheWinner) {
  EXPECT_EQ(PairOf({3}, {4, 1, 3}, Extreme(kArgmin, 0)), (Pair{{3}, {1}}));
}

TEST(Choices, EachLineHasAPairOfItsOwn) {
  EXPECT_EQ(PairOf({2, 3}, {1, 5, 3, 9, 8, 2}, Extreme(kArgmax, 1)), (Pair{{5, 9}, {3, 8}}));
  EXPECT_EQ(PairOf({2, 3}, {1, 5, 3, 9, 8, 2}, Extreme(kArgmax, 0)), (Pair{{9, 8, 3}, {1, 5, 2}}));
}

TEST(Choices, OfAnOrderNeighboursAreComparedAndTheLastWithTheOneBeforeIt) {
  EXPECT_EQ(PairOf({3}, {3, 1, 2}, Extreme(kArgsort, 0)), (Pair{{2, 3, 3}, {1, 2, 2}}));
  // Columns, each in its own order.
  EXPECT_EQ(PairOf({2, 2}, {4, 1, 3, 2}, Extreme(kArgsort, 0)), (Pair{{4, 2, 4, 2}, {3, 1, 3, 1}}));
}

TEST(Choices, OfPivotsTheMagnitudesOfTheLargestAndTheNext) {
  const Pair pair = PairOf({3, 3}, {1, 0, 0, -4, 2, 1, 3, 5, 1}, Of(kLuPermutation));
  ASSERT_EQ(pair.first.size(), 3u);
  EXPECT_EQ(pair.first[0], 4);
  EXPECT_EQ(pair.second[0], 3);
  // Rows 0 and 2 less 1/-4 and 3/-4 of the pivot's: (0.5, 0.25) and (6.5, 1.75).
  EXPECT_EQ(pair.first[1], 6.5);
  EXPECT_EQ(pair.second[1], 0.5);
}

TEST(Choices, OfGivenPivotsTheMagnitudesBehindThem) {
  const auto given = [](Builder& b, Var x) {
    return b.Do(kLuPermutation, {x, b.IntegerArray({0, 1, 2}, {3})});
  };
  // Rows 1 and 2 less 2 and 0.5 times row 0: (2, 1) and (5, 1).
  const Pair pair = PairOf({3, 3}, {2, 0, 0, 4, 2, 1, 1, 5, 1}, given);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(pair, (Pair{{4, 5, infinity}, {2, 2, 0}}));
}

TEST(Choices, OfCholeskyEachPivotIsComparedWithNought) {
  EXPECT_EQ(PairOf({2, 2}, {4, 2, 2, 5}, Of(kCholesky)), (Pair{{4, 4}, {0, 0}}));
}

TEST(Choices, OfAConversionTheMagnitudeAndTheNearestIntegerButNought) {
  EXPECT_EQ(PairOf({3}, {2.25, -0.25, -3.75}, To(ElementType::kI32)),
            (Pair{{2.25, 0.25, 3.75}, {2, 1, 4}}));
  EXPECT_EQ(PairOf({2}, {0.5, -2}, To(ElementType::kBool)), (Pair{{0.5, -2}, {0, 0}}));
}

TEST(Choices, OfAConversionOfWhatIsWholeWhatMadeItSo) {
  const auto of = [](OpCode code) {
    return [=](Builder& b, Var x) { return b.Convert(b.Apply(code, {x}), ElementType::kI32); };
  };
  const Numbers x = {2.25, -0.25, -3.75, 4};
  const Numbers nearest = {2, 0, -4, 4};
  EXPECT_EQ(PairOf({4}, x, of(kFloor)), (Pair{x, nearest}));
  EXPECT_EQ(PairOf({4}, x, of(kCeil)), (Pair{x, nearest}));
  EXPECT_EQ(PairOf({4}, x, of(kRound)), (Pair{{2.25, 0.25, 3.75, 4}, {2.5, 0.5, 3.5, 4.5}}));
  EXPECT_EQ(PairOf({4}, x, of(kTrunc)), (Pair{{2.25, 0.25, 3.75, 4}, {2, 1, 4, 4}}));
}

TEST(Choices, ReadersOfTheOperationReadTheResultOfTheTest) {
  Builder b("readers");
  const Var x = b.State("x", {3});
  const Var index = b.Do(kArgmax, {x}, {.axes = {0}});
  std::vector<Op> out;
  PassBudget budget;
  WriteChoice(b.program(), LastOf(b), {}, "best", TestKind::kTermination, out, budget);
  EXPECT_EQ(out.front().code, kArgmax);
  EXPECT_NE(out.front().results[0], index.id);
  EXPECT_EQ(out.back().code, kChoice);
  EXPECT_EQ(out.back().results, std::vector<ValueId>{index.id});
  EXPECT_EQ(out.back().operands[0], out.front().results[0]);
  EXPECT_EQ(out.back().attributes.site, "best");
  EXPECT_EQ(out.back().attributes.kind, TestKind::kTermination);
}

TEST(Choices, OnlyWhatComparesSeveralRealsChooses) {
  const auto chooses = [](const Type& type, const Write& write) {
    Builder b("which");
    write(b, b.State("x", type.shape, "", type.element));
    return ChoosesByReals(b.program(), LastOf(b));
  };
  const auto is_true = [](Builder& b, Var x) { return b.Apply(kLt, {x, x}); };
  EXPECT_TRUE(chooses({ElementType::kReal, {2}}, Extreme(kArgmax, 0)));
  EXPECT_FALSE(chooses({ElementType::kReal, {1}}, Extreme(kArgmax, 0)));
  EXPECT_FALSE(chooses({ElementType::kReal, {2, 1}}, Extreme(kArgsort, 1)));
  EXPECT_FALSE(chooses({ElementType::kI32, {2}}, Extreme(kArgsort, 0)));
  EXPECT_TRUE(chooses({ElementType::kReal, {1, 1}}, Of(kCholesky)));
  EXPECT_TRUE(chooses({ElementType::kReal, {2, 1}}, Of(kLuPermutation)));
  EXPECT_FALSE(chooses({ElementType::kReal, {1, 2}}, Of(kLuPermutation)));
  EXPECT_TRUE(chooses({ElementType::kReal, {}}, To(ElementType::kBool)));
  EXPECT_FALSE(chooses({ElementType::kI32, {}}, To(ElementType::kI64)));
  EXPECT_FALSE(chooses({ElementType::kReal, {}}, is_true));
}

}  // namespace
}  // namespace simgrad::sim
