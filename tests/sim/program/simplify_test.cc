// Copies and dead code are removed, and nothing else.
#include "sim/program/simplify.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/program/builder.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

std::string Simplified(const Program& program, const std::vector<ValueId>& keep = {}) {
  PassBudget budget;
  return Print(Simplify(program, keep, budget));
}

TEST(Simplify, ReadersOfACopyReadItsOperand) {
  Builder b("copies");
  const Var x = b.State("x", {2});
  const Var copy = b.Reshape(b.Broadcast(x, {2}, {0}), {2});
  b.SetNext({b.Apply(OpCode::kSin, {copy})});
  EXPECT_EQ(Simplified(b.program()),
            "world copies\n"
            "state %0:real[2] x\n"
            "step:\n"
            "  %1:real[2] = sin %0  # dynamics\n"
            "  yield %1\n");
}

TEST(Simplify, ABroadcastThatWidensIsNoCopy) {
  Builder b("widens");
  const Var x = b.State("x", {2});
  const Var wide = b.Broadcast(x, {2, 2}, {1});
  b.SetNext({b.Slice(b.Reshape(wide, {4}), {0}, {2})});
  const Program& program = b.program();
  EXPECT_FALSE(IsCopy(program, program.step.ops[0]));
  EXPECT_FALSE(IsCopy(program, program.step.ops[1]));
  EXPECT_EQ(Simplified(program), Print(program));
}

TEST(Simplify, WhatNothingUsesGoesWithAllThatOnlyItUsed) {
  Builder b("dead");
  const Var x = b.State("x", {});
  b.Apply(OpCode::kSin, {b.Apply(OpCode::kCos, {x})});
  b.SetNext({x + x});
  EXPECT_EQ(Simplified(b.program()),
            "world dead\n"
            "state %0:real[] x\n"
            "step:\n"
            "  %1:real[] = add %0, %0  # dynamics\n"
            "  yield %1\n");
}

TEST(Simplify, AnEventStaysWithWhatItReads) {
  Builder b("sites");
  const Var x = b.State("x", {});
  b.Event("low", b.Apply(OpCode::kSin, {x}), Comparison::kLt, b.Literal(0.0));
  b.SetNext({x});
  EXPECT_EQ(Simplified(b.program()), Print(b.program()));
}

TEST(Simplify, ALoopStaysWhereItDecidesInside) {
  for (const bool decides : {false, true}) {
    Builder b("loops");
    const Var x = b.State("x", {});
    b.For(2, {x}, [&](Var, const Vars& carried) {
      if (decides) b.Event("low", carried[0], Comparison::kLt, b.Literal(0.0));
      return Vars{carried[0] * carried[0]};
    });
    b.SetNext({x});
    PassBudget budget;
    EXPECT_EQ(Simplify(b.program(), {}, budget).step.ops.size(), decides ? 1u : 0u);
  }
}

TEST(Simplify, KeepsWhatIsUsedOutsideTheRegions) {
  Builder b("kept");
  const Var x = b.State("x", {});
  const Var kept = b.Apply(OpCode::kSin, {x});
  b.Apply(OpCode::kCos, {x});
  const Var exported = b.Apply(OpCode::kTanh, {x});
  b.Export("out", exported);
  b.SetNext({x});
  PassBudget budget;
  const Program simple = Simplify(b.program(), {kept.id, ValueId::kNone}, budget);
  ASSERT_EQ(simple.step.ops.size(), 2u);
  EXPECT_EQ(simple.step.ops[0].code, OpCode::kSin);
  EXPECT_EQ(simple.step.ops[1].code, OpCode::kTanh);
}

// In every region, of exports and yields too; dead code stays.
TEST(RemoveCopies, ReadersInEveryRegionReadTheOperand) {
  Builder b("everywhere");
  const Var x = b.State("x", {2});
  const auto copy = [&](Var of) { return b.Broadcast(b.Reshape(of, {2}), {2}, {0}); };
  b.SetInitial([&] { return Vars{copy(x)}; });
  const Vars turned = b.For(2, {x}, [&](Var, const Vars& now) {
    return Vars{copy(b.Apply(OpCode::kSin, {copy(now[0])}))};
  });
  b.Apply(OpCode::kCos, {copy(x)});
  b.Export("out", copy(turned[0]));
  b.SetNext({copy(turned[0])});
  b.AddObjective(
      "cost", [&] { return b.Reduce(OpCode::kSum, copy(x)); },
      [&](const Vars& states, const Vars&) { return b.Reduce(OpCode::kSum, copy(states[0])); });
  PassBudget budget;
  const Program without = RemoveCopies(b.program(), budget);
  EXPECT_TRUE(without.initial.ops.empty());
  EXPECT_EQ(without.initial.yields, std::vector<ValueId>{x.id});
  ASSERT_EQ(without.step.ops.size(), 2u);
  const Op& loop = without.step.ops[0];
  const Region& body = loop.regions[0];
  ASSERT_EQ(body.ops.size(), 1u);
  EXPECT_EQ(body.ops[0].operands, std::vector<ValueId>{body.args[1]});
  EXPECT_EQ(body.yields, body.ops[0].results);
  EXPECT_EQ(without.step.ops[1].code, OpCode::kCos);
  EXPECT_EQ(without.step.ops[1].operands, std::vector<ValueId>{x.id});
  EXPECT_EQ(without.exports[0].value, turned[0].id);
  EXPECT_EQ(without.step.yields, std::vector<ValueId>{turned[0].id});
  const Objective& cost = without.objectives[0];
  ASSERT_EQ(cost.stage.ops.size(), 1u);
  EXPECT_EQ(cost.stage.ops[0].operands, std::vector<ValueId>{x.id});
  ASSERT_EQ(cost.terminal.ops.size(), 1u);
  EXPECT_EQ(cost.terminal.ops[0].operands, std::vector<ValueId>{cost.terminal.args[0]});
}

TEST(RemoveCopies, WhatChangesTheShapeStays) {
  Builder b("widens");
  const Var x = b.State("x", {2});
  const Var wide = b.Broadcast(x, {2, 2}, {1});
  b.SetNext({b.Slice(b.Reshape(wide, {4}), {0}, {2})});
  PassBudget budget;
  EXPECT_EQ(Print(RemoveCopies(b.program(), budget)), Print(b.program()));
}

// The adjoint's dead code goes first, and then what only that read in the primal.
TEST(RemoveUnread, TakesFromThePrimalWhatOnlyDeadCodeOfTheAdjointRead) {
  Builder b("unread");
  const Var x = b.State("x", {});
  const Var read = b.Apply(OpCode::kSin, {x});
  const Var only_there = b.Apply(OpCode::kCos, {x});
  b.SetNext({x + x});
  NumericalProgram numerical;
  numerical.program = b.program();
  Program& program = numerical.program;
  Region& reversed = numerical.adjoint.emplace().inner;
  for (const Var& primal : {read, only_there}) {
    Op tape{.code = OpCode::kTape, .role = Role::kTape};
    tape.attributes.primal = primal.id;
    tape.results = {program.AddValue({ElementType::kReal, {}})};
    reversed.ops.push_back(tape);
  }
  reversed.yields = {reversed.ops[0].results[0], ValueId::kNone};
  PassBudget budget;
  const NumericalProgram left = RemoveUnread(numerical, budget);
  ASSERT_EQ(left.adjoint->inner.ops.size(), 1u);
  EXPECT_EQ(left.adjoint->inner.ops[0].attributes.primal, read.id);
  ASSERT_EQ(left.program.step.ops.size(), 2u);
  EXPECT_EQ(left.program.step.ops[0].code, OpCode::kSin);
  EXPECT_EQ(left.program.step.ops[1].code, OpCode::kAdd);
}

}  // namespace
}  // namespace simgrad::sim
