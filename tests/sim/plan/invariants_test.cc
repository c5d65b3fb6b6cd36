// Which loops of a step are invariant, and that what they store keeps a place of its own.
#include "sim/plan/invariants.h"

#include "gtest/gtest.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/statement_walk.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::plan {
namespace {

Plan PlacedOf(Builder& builder) {
  const Program world = *builder.Finish();
  precision::PolicySpec spec;
  spec.preset = "f32";
  return PlacedPlan(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), {.ranges = true});
}

// By name: the locals that invariant loops of the function's own block store.
std::vector<std::string> KeptLocals(const Function& function) {
  std::vector<std::string> names;
  for (const Statement& s : function.statements) {
    if (!s.invariant) continue;
    EachStatement(s.body, [&](const Statement& inner) {
      if (WritesBuffer(inner)) {
        names.push_back(function.buffers[static_cast<size_t>(inner.buffer)].name);
      }
    });
  }
  return names;
}

TEST(Invariants, WeightsAreCastOnceAndControlsInEachStep) {
  Builder b("network");
  const Var x = b.State("x", {1, 8});
  const Var w = b.Param("w", {8, 8});
  const Var u = b.Control("u", {8, 8});
  const Var sum = b.Do(OpCode::kMatmul, {x, w}) + b.Do(OpCode::kMatmul, {x, u});
  b.SetNext({sum});
  const Plan plan = PlacedOf(b);
  EXPECT_EQ(KeptLocals(plan.step), std::vector<std::string>{"w"});
  EXPECT_EQ(plan.step.kept, 8 * 8 * 4);
}

TEST(Invariants, WhatHangsOnAStateOrOnTheTimeVaries) {
  Builder b("varies");
  const Var x = b.State("x", {16});
  const Var w = b.Param("w", {16});
  const Var t = b.Convert(b.StepIndex(), ElementType::kReal);
  const Var of_time = b.Cumsum(w * b.Broadcast(t, {16}, {}), 0);
  const Var of_state = b.Cumsum(w * x, 0);
  b.SetNext({of_time + of_state});
  const Plan plan = PlacedOf(b);
  EXPECT_EQ(KeptLocals(plan.step), std::vector<std::string>{"w"});
}

bool ReadsField(const Function& function, const Statement& loop) {
  bool reads = false;
  EachStatement(loop.body, [&](const Statement& s) {
    reads = reads || (s.code == Code::kLoad &&
                      function.buffers[static_cast<size_t>(s.buffer)].kind == BufferKind::kField);
  });
  return reads;
}

TEST(Invariants, WhatHangsOnInvariantsAloneIsOne) {
  Builder b("chain");
  const Var x = b.State("x", {8, 8});
  const Var w = b.Param("w", {8, 8});
  const Var square = b.Do(OpCode::kMatmul, {w, w});
  b.SetNext({x + b.Do(OpCode::kMatmul, {square, b.Literal(2.0, {8, 8}) * square})});
  const Plan plan = PlacedOf(b);
  int invariant = 0;
  for (const Statement& s : plan.step.statements) {
    if (s.code != Code::kEach) continue;
    EXPECT_NE(s.invariant, ReadsField(plan.step, s));
    invariant += s.invariant ? 1 : 0;
  }
  EXPECT_GE(invariant, 3);
}

// No other local takes the place of one that is kept.
TEST(Invariants, KeptLocalsComeFirstInTheWorkspace) {
  Builder b("many");
  const Var x = b.State("x", {1, 8});
  Var y = x;
  for (int k = 0; k < 12; ++k) {
    const Var w = b.Param("w" + std::to_string(k), {8, 8});
    y = b.Apply(OpCode::kTanh, {b.Do(OpCode::kMatmul, {y, w})});
  }
  b.SetNext({y});
  const Plan plan = PlacedOf(b);
  const Function& step = plan.step;
  std::vector<bool> is_kept(step.buffers.size(), false);
  for (const Statement& s : step.statements) {
    if (!s.invariant) continue;
    EachStatement(s.body, [&](const Statement& inner) {
      if (WritesBuffer(inner)) is_kept[static_cast<size_t>(inner.buffer)] = true;
    });
  }
  EXPECT_EQ(step.kept, 12 * 8 * 8 * 4);
  for (size_t id = 0; id < is_kept.size(); ++id) {
    const Buffer& buffer = step.buffers[id];
    if (buffer.kind != BufferKind::kLocal || buffer.offset < 0) continue;
    EXPECT_EQ(buffer.offset < step.kept, is_kept[id]) << buffer.name;
  }
}

}  // namespace
}  // namespace simgrad::sim::plan
