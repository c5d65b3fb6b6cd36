// What an objective adds to a program.
#include "sim/program/objective.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/op/expansion.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "sim/program/print.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

// A state, a param; a cost of every step and one of the end, in two objectives.
Program World() {
  Builder b("costs");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 1.0);
  const Var y = k * x;
  b.Export("y", y, false);
  b.SetNext({y});
  b.AddObjective(
      "along",
      [&] {
        const Var square = y * y;
        const Var scaled = k * y;
        return square + scaled;
      },
      nullptr);
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  return *b.Finish();
}

NumericalProgram Chosen(const Program& world, const std::string& name) {
  PassBudget budget;
  return ChooseObjective(world, name, budget);
}

TEST(ChooseObjective, PutsTheStageCostBehindTheStepAsAnIdentityInItsRole) {
  EXPECT_EQ(Print(Chosen(World(), "along")),
            "world costs\n"
            "nonfinite report\n"
            "state %0:real[] x\n"
            "param %1:real[] k = 0x1p+0\n"
            "step:\n"
            "  %2:real[] = mul %1, %0  # dynamics\n"
            "  %3:real[] = mul %2, %2  # objective\n"
            "  %4:real[] = mul %1, %2  # objective\n"
            "  %5:real[] = add %3, %4  # objective\n"
            "  %6:real[] = cast %5  # objective\n"
            "  yield %2\n"
            "export %2 y\n"
            "stage cost %6 of along\n");
}

TEST(ChooseObjective, DropsEveryOtherObjective) {
  const NumericalProgram end = Chosen(World(), "end");
  ASSERT_EQ(end.program.objectives.size(), 1u);
  EXPECT_EQ(end.program.objectives[0].name, "end");
  EXPECT_EQ(end.stage_cost, ValueId::kNone);
  EXPECT_TRUE(Chosen(World(), "").program.objectives.empty());
}

TEST(ChooseObjective, GivesAnExportThatNoOperationComputesAnIdentity) {
  Builder b("exports");
  const Var x = b.State("x", {2});
  const Var sine = b.Apply(OpCode::kSin, {x});
  b.Export("state", x);
  b.Export("copy", b.Broadcast(x, {2}, {0}));
  b.Export("sine", sine);
  b.SetNext({x});
  const Program world = *b.Finish();
  const NumericalProgram chosen = Chosen(world, "");
  const std::vector<Op>& ops = chosen.program.step.ops;
  ASSERT_EQ(ops.size(), world.step.ops.size() + 2);
  EXPECT_EQ(ops[2].code, OpCode::kCast);
  EXPECT_EQ(ops[2].role, Role::kDynamics);
  EXPECT_EQ(chosen.program.exports[0].value, ops[2].results[0]);
  EXPECT_EQ(chosen.program.exports[1].value, ops[3].results[0]);
  EXPECT_EQ(chosen.program.exports[2].value, sine.id);
}

// A call with its own vjp makes what its body yields, which RemoveOwnVjps puts in its place.
TEST(ChooseObjective, GivesAnExportOfWhatACallHandsOnAnIdentity) {
  Builder b("calls");
  const Var x = b.State("x", {});
  const auto call = [&](const Var& given, bool computes) {
    return b.Call(
        {given}, [&](const Vars& a) { return Vars{computes ? a[0] * a[0] : b.Literal(3.5)}; },
        [](const Vars&, const Vars&, const Vars& g) { return Vars{g[0]}; })[0];
  };
  b.Export("literal", call(x, false));
  b.Export("square", call(x, true));
  b.SetNext({x});
  PassBudget budget;
  const NumericalProgram chosen =
      ChooseObjective(ExpandComposites(*b.Finish(), budget), "", budget);
  const std::vector<Op>& ops = chosen.program.step.ops;
  EXPECT_EQ(ops.back().code, OpCode::kCast);
  EXPECT_EQ(chosen.program.exports[0].value, ops.back().results[0]);
  EXPECT_NE(chosen.program.exports[1].value, ops.back().results[0]);
  EXPECT_TRUE(Lower(*b.Finish(), tests::PolicyOf({.preset = "f16_unsafe"}), "", {}).ok());
}

TEST(BringIntoObjective, CastsWhatAnotherRoleComputedOnceInFrontOfItsFirstReader) {
  PassBudget budget;
  EXPECT_EQ(Print(BringIntoObjective(Chosen(World(), "along"), budget).program),
            "world costs\n"
            "state %0:real[] x\n"
            "param %1:real[] k = 0x1p+0\n"
            "step:\n"
            "  %2:real[] = mul %1, %0  # dynamics\n"
            "  %3:real[] = cast %2  # objective\n"
            "  %4:real[] = mul %3, %3  # objective\n"
            "  %5:real[] = mul %1, %3  # objective\n"
            "  %6:real[] = add %4, %5  # objective\n"
            "  %7:real[] = cast %6  # objective\n"
            "  yield %2\n"
            "export %2 y\n");
}

TEST(BringIntoObjective, CastsTheStatesThatATerminalCostReads) {
  Builder b("end");
  const Var x = b.State("x", {});
  b.SetNext({x});
  b.AddObjective("end", nullptr,
                 [](const Vars& states, const Vars&) { return states[0] * states[0]; });
  PassBudget budget;
  const NumericalProgram brought = BringIntoObjective(Chosen(*b.Finish(), "end"), budget);
  const Region& terminal = brought.program.objectives[0].terminal;
  ASSERT_EQ(terminal.ops.size(), 2u);
  EXPECT_EQ(terminal.ops[0].code, OpCode::kCast);
  EXPECT_EQ(terminal.ops[0].operands, terminal.args);
  EXPECT_EQ(terminal.ops[1].operands[0], terminal.ops[0].results[0]);
  EXPECT_EQ(terminal.ops[1].operands[1], terminal.ops[0].results[0]);
}

}  // namespace
}  // namespace simgrad::sim
