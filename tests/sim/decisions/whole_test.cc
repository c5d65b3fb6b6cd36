// How far the real behind an integer is from where the integer changes.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "precision/ulp.h"
#include "sim/program/builder.h"
#include "tests/sim/decisions/executors.h"
#include "tests/sim/decisions/f32_program.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using enum OpCode;
using tests::Bind;
using Write = std::function<Var(Builder& b, Var x)>;

// Of the choice that converts what `write` makes of four numbers, the same as each other, in f32.
SmallestMargin MarginOf(const std::shared_ptr<Executor>& executor, double x, const Write& write) {
  Builder b("whole");
  b.program().level = TestLevel::kDecisions;
  const Var state = b.State("x", {4});
  const Var places = b.Convert(write(b, state), ElementType::kI32);
  const Var taken = b.Do(kGather, {state, places}, {.axes = {0}, .bounds = Bounds::kClip});
  b.SetNext({b.Broadcast(b.Reduce(kSum, taken), {4}, {})});
  Work work = tests::WorkOf(*tests::InF32(b), 1, 1);
  Bind(work, InputKind::kState, "x", tests::Shared({x, x, x, x}, {4}));
  return tests::RunSeen(executor, std::move(work)).diagnostics.events.back().at(0).margin;
}

struct Move {
  std::string name;
  Write write;
};

std::vector<Move> Moves() {
  const auto part = [](Builder& b, Var x) { return b.Slice(x, {2}, {1}); };
  const auto gather = [](Bounds bounds) {
    return [bounds](Builder& b, Var x) {
      return b.Do(kGather, {x, b.IntegerArray({3, 1}, {2})}, {.axes = {0}, .bounds = bounds});
    };
  };
  return {
      {"nothing", [](Builder&, Var x) { return x; }},
      {"reshape",
       [](Builder& b, Var x) {
         return b.Reshape(x, {2, 2});
       }},
      {"broadcast",
       [](Builder& b, Var x) {
         return b.Broadcast(x, {3, 4}, {1});
       }},
      {"slice", part},
      {"transpose",
       [](Builder& b, Var x) {
         return b.Do(kTranspose, {b.Reshape(x, {2, 2})}, {.dims = {1, 0}});
       }},
      {"take",
       [](Builder& b, Var x) {
         return b.Do(kTake, {x}, {.start = {3, 0}, .shape = {2}});
       }},
      {"gather", gather(Bounds::kClip)},
      {"several, and a bound between them",
       [=](Builder& b, Var x) {
         const Var most = b.Broadcast(b.Literal(100.0), {1}, {});
         return b.Reshape(b.Apply(kMin, {part(b, x), most}) + b.Reshape(b.Literal(1.0), {1}), {});
       }},
  };
}

TEST(Whole, AMarginIsThatOfTheRoundedNumberBehindMoves) {
  for (const auto& executor : TestedExecutors()) {
    for (const Move& move : Moves()) {
      const auto of = [&](OpCode code, double x) {
        return MarginOf(executor, x,
                        [&](Builder& b, Var v) { return move.write(b, b.Apply(code, {v})); })
            .absolute;
      };
      const std::string what = move.name + " on " + std::string(executor->name());
      EXPECT_EQ(of(kFloor, 2.125), 0.125) << what;
      EXPECT_EQ(of(kCeil, 1.875), -0.125) << what;
      EXPECT_EQ(of(kRound, 2.625), 0.125) << what;
      EXPECT_EQ(of(kTrunc, 2.125), 0.125) << what;
    }
  }
}

// Places outside take `fill`, which no rounding made.
TEST(Whole, WhatFillsInIsNotRounded) {
  const Write write = [](Builder& b, Var x) {
    return b.Do(kGather, {b.Apply(kFloor, {x}), b.IntegerArray({9}, {1})},
                {.literal = {7}, .axes = {0}, .bounds = Bounds::kFill});
  };
  for (const auto& executor : TestedExecutors()) {
    EXPECT_EQ(MarginOf(executor, 2.125, write).absolute, 0.0) << executor->name();
  }
}

TEST(Whole, UlpsOfRoundAreThoseOfTheMagnitude) {
  const Write write = [](Builder& b, Var x) { return b.Apply(kRound, {x}); };
  for (const auto& executor : TestedExecutors()) {
    for (double x : {0.25, 1.75, 3.75, 7.625, 100.25}) {
      const SmallestMargin positive = MarginOf(executor, x, write);
      const SmallestMargin negative = MarginOf(executor, -x, write);
      EXPECT_EQ(negative.absolute, positive.absolute) << x;
      EXPECT_EQ(negative.ulps, positive.ulps) << x;
    }
    const double expected = 0.25 / precision::Ulp(Format::kF32, 3.75);
    EXPECT_EQ(MarginOf(executor, -3.75, write).ulps, expected);
  }
}

}  // namespace
}  // namespace simgrad::sim
