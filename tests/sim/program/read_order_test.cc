// In which order the operations inside small loops are first met by what a cotangent reaches.
#include "sim/program/read_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/program/step_shape.h"

namespace simgrad::sim {
namespace {

// When each operation of the body of a step's only loop is first met, if the yields of the step are
// entered so; in the order of the text, -1 where it is never met.
std::vector<int32_t> FirstMetIn(Builder& b, const std::vector<Presence>& entered) {
  tests::StepShape step(b);
  PresencePlan plan(step.budget());
  const PresencePlan::LoopId loop = plan.LoopOf(plan.Once(step.get(), entered, nullptr), 0);
  ReadOrder order(plan, step.budget());
  order.Add(loop, 0);

  for (const Op& op : b.program().step.ops) {
    if (op.code != OpCode::kFor) continue;
    const PresencePlan::ScopeId body = plan.Inside(loop, PresencePlan::kBody);
    std::vector<int32_t> met(op.regions[0].ops.size());
    size_t next = 0;
    for (size_t i = met.size(); i-- > 0;) {
      const int32_t reader = plan.ReaderOf(body, op.regions[0].ops[i], next);
      met[i] = reader < 0 ? -1 : order.FirstMet(0, reader);
    }
    return met;
  }
  return {};
}

using enum Presence;

TEST(ReadOrder, OneRoundGoesFromTheLastOperationUp) {
  Builder b("chain");
  const Var x = b.State("x", {});
  const Vars out = b.For(2, {x}, [&](Var, const Vars& carried) {
    const Var sine = b.Apply(OpCode::kSin, {carried[0]});
    return Vars{b.Apply(OpCode::kTanh, {sine})};
  });
  b.SetNext({out[0]});
  const std::vector<int32_t> met = FirstMetIn(b, {kAlways});
  ASSERT_EQ(met.size(), 2u);
  EXPECT_LT(met[1], met[0]);
}

// The cotangent of `a` comes only from that of `b`, a round before.
std::vector<int32_t> TwoRounds(const std::vector<Presence>& entered) {
  Builder b("rounds");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Vars out = b.For(3, {x, y}, [&](Var, const Vars& carried) {
    const Var of_b = b.Apply(OpCode::kSin, {carried[0]});
    const Var of_a = b.Apply(OpCode::kTanh, {carried[0]});
    return Vars{of_a, of_b};
  });
  b.SetNext({out[0], out[1]});
  return FirstMetIn(b, entered);
}

TEST(ReadOrder, WhatOnlyALaterRoundReversesComesLater) {
  // The text alone would have the hyperbolic tangent first.
  const std::vector<int32_t> met = TwoRounds({kNever, kAlways});
  ASSERT_EQ(met.size(), 2u);
  EXPECT_LT(met[0], met[1]);
}

TEST(ReadOrder, WhatIsEnteredAtOnceIsOneRound) {
  const std::vector<int32_t> met = TwoRounds({kAlways, kAlways});
  ASSERT_EQ(met.size(), 2u);
  EXPECT_LT(met[1], met[0]);
}

TEST(ReadOrder, EachOperationIsMetOnce) {
  Builder b("wide");
  const Var x = b.State("x", {});
  const Vars out = b.For(4, {x, x, x}, [&](Var, const Vars& carried) {
    return Vars{b.Apply(OpCode::kSin, {carried[2]}), b.Apply(OpCode::kSin, {carried[0]}),
                b.Apply(OpCode::kSin, {carried[1]})};
  });
  b.SetNext({out[0] + b.Apply(OpCode::kFloor, {out[1] + out[2]})});
  std::vector<int32_t> met = FirstMetIn(b, {kAlways});
  // A round each: the first, then what feeds it, then what feeds that.
  EXPECT_EQ(met, (std::vector<int32_t>{0, 2, 1}));
}

}  // namespace
}  // namespace simgrad::sim
