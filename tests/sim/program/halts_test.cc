// What a program with halts becomes: one more state, and a step that halted instances do not take.
#include "sim/program/halts.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/print.h"
#include "tests/sim/backend/reference/one_step.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

void WriteFall(Builder& b, bool reads_step = false) {
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.Param("k", {}, 1.0);
  if (reads_step) b.StepIndex();
  const Var next = x - b.Literal(1.0);
  b.Halt("low", b.Event("low", next, Comparison::kLt, b.Literal(0.0)));
  b.Halt("still", b.Event("still", next, Comparison::kLt, b.Literal(0.5)), true);
  b.SetNext({next, y + x});
}

Program Expanded(Builder& b) {
  PassBudget budget;
  return ExpandHalts(b.program(), std::nullopt, budget).program;
}

TEST(Halts, AProgramWithoutThemStays) {
  Builder b("runs");
  const Var x = b.State("x", {});
  b.SetNext({x + x});
  EXPECT_EQ(Print(Expanded(b)), Print(b.program()));
  EXPECT_TRUE(HaltNames(b.program()).empty());
}

TEST(Halts, AreNamedInTheOrderOfTheTextAndTakenOutOfTheStep) {
  Builder b("names");
  WriteFall(b);
  EXPECT_EQ(HaltNames(b.program()), (std::vector<std::string>{"low", "still"}));
  const Program expanded = Expanded(b);
  EXPECT_TRUE(HaltNames(expanded).empty());
  EXPECT_EQ(Print(expanded).find(" halt "), std::string::npos);
}

TEST(Halts, TheirStateIsTheLastOneAndStartsAtNought) {
  Builder b("state");
  WriteFall(b);
  const Program expanded = Expanded(b);
  ASSERT_EQ(expanded.InputsOf(InputKind::kState), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(expanded.inputs[2].name, kHaltedState);
  EXPECT_EQ(expanded.inputs[2].default_value, 0.0);
  EXPECT_EQ(expanded[expanded.inputs[2].value].type, (Type{ElementType::kI64, {}}));
  EXPECT_EQ(expanded.inputs[3].name, "k");
  EXPECT_EQ(expanded.step.yields.size(), 3u);
}

TEST(Halts, TheStepIsReadFromTheWorldsOwnInputWhereThereIsOne) {
  for (const bool reads_step : {false, true}) {
    Builder b("step");
    WriteFall(b, reads_step);
    EXPECT_EQ(Expanded(b).InputsOf(InputKind::kStep), std::vector<int32_t>{4});
  }
}

TEST(Halts, AnInitialRegionHandsTheirStateOn) {
  Builder b("initial");
  WriteFall(b);
  b.SetInitial([&] { return Vars{b.Literal(1.0), b.Literal(2.0)}; });
  const Program expanded = Expanded(b);
  ASSERT_EQ(expanded.initial.yields.size(), 3u);
  EXPECT_EQ(expanded.initial.yields[2], expanded.inputs[2].value);
}

TEST(Halts, WhatIsWantedKeepsItsPlacesAroundTheNewState) {
  Builder b("spec");
  WriteFall(b);
  PassBudget budget;
  const std::optional<AdjointSpec> asked = AdjointSpec{
      .final_state = {true, true}, .trajectory_state = {}, .wanted = {false, true, true}};
  const std::optional<AdjointSpec> spec = ExpandHalts(b.program(), asked, budget).spec;
  EXPECT_EQ(spec->final_state, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(spec->trajectory_state, (std::vector<bool>{false, false, false}));
  EXPECT_EQ(spec->wanted, (std::vector<bool>{false, true, false, true}));
}

TEST(Halts, ATerminalCostTakesTheirStateBehindTheOthers) {
  Builder b("terminal");
  WriteFall(b);
  b.Export("out", b.Literal(1.0));
  b.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[1]; });
  const Program expanded = Expanded(b);
  const std::vector<ValueId>& args = expanded.objectives[0].terminal.args;
  ASSERT_EQ(args.size(), 4u);
  EXPECT_EQ(expanded[args[2]].name, kHaltedState);
}

TEST(Halts, OfSeveralThatHoldInOneStepTheFirstInTheTextCounts) {
  for (const double x : {0.25, 1.25}) {
    tests::Setting setting;
    setting.states = {{x}, {0.0}};
    setting.steps = 3;
    const tests::Outcome outcome = tests::RunProgram(setting, [](Builder& b) { WriteFall(b); });
    ASSERT_TRUE(outcome.result.halts[0].has_value());
    // From 0.25 both hold, and `low` is no error: the step completes. From 1.25 `still` alone holds.
    const bool completes = x < 1;
    EXPECT_EQ(outcome.result.halts[0]->halt, completes ? 0 : 1);
    EXPECT_EQ(outcome.result.halts[0]->error, !completes);
    EXPECT_EQ(outcome.result.halts[0]->step, 0);
    EXPECT_EQ(tests::FinalState(outcome, 0)[0], completes ? x - 1 : x);
    EXPECT_EQ(tests::FinalState(outcome, 1)[0], completes ? x : 0.0);
  }
}

}  // namespace
}  // namespace simgrad::sim
