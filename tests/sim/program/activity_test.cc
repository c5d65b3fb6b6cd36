// Which values a derivative can flow through.
#include "sim/program/activity.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/program/builder.h"

namespace simgrad::sim {
namespace {

// The active ones among `values`, by name.
std::string Active(const Program& program, const std::vector<bool>& wanted, const Vars& values,
                   const Region* terminal = nullptr) {
  AdjointSpec spec;
  spec.wanted = wanted;
  PassBudget budget;
  const std::vector<bool> active = ActiveValues(program, terminal, spec, budget);
  std::string names;
  for (const Var& value : values) {
    if (active[Index(value.id)]) names += program[value.id].name + " ";
  }
  return names;
}

TEST(ActiveValues, BeginAtStatesAndAtTheInputsWhoseGradientIsWanted) {
  Builder b("inputs");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 1.0);
  const Var c = b.Param("c", {}, 1.0);
  const Var of_k = b.Named(b.Apply(OpCode::kSin, {k}), "of_k");
  const Var of_c = b.Named(b.Apply(OpCode::kSin, {c}), "of_c");
  b.SetNext({x});
  EXPECT_EQ(Active(b.program(), {false, true, false}, {x, k, c, of_k, of_c}), "x k of_k ");
}

TEST(ActiveValues, EndWhereAnOperationHasNoDerivative) {
  Builder b("blocked");
  const Var x = b.State("x", {});
  const Var whole = b.Named(b.Apply(OpCode::kFloor, {x}), "whole");
  const Var stopped = b.Named(b.Apply(OpCode::kStopGradient, {x}), "stopped");
  const Var low = b.Named(b.Event("low", x, Comparison::kLt, whole), "low");
  const Var chosen = b.Named(Select(low, whole, stopped), "chosen");
  const Var sum = b.Named(chosen + x, "sum");
  b.SetNext({sum});
  EXPECT_EQ(Active(b.program(), {}, {x, whole, stopped, low, chosen, sum}), "x sum ");
}

TEST(ActiveValues, GoRoundALoopAsOftenAsItTakes) {
  Builder b("round");
  const Var x = b.State("x", {});
  const Var c = b.Param("c", {}, 1.0);
  // What enters the first carried value arrives in the third in the third iteration.
  const Vars out = b.For(5, {x, c, c, c}, [](Var, const Vars& carried) {
    return Vars{carried[0], carried[0], carried[1], carried[3]};
  });
  for (size_t i = 0; i < out.size(); ++i) b.Named(out[i], "out" + std::to_string(i));
  b.SetNext({out[2]});
  EXPECT_EQ(Active(b.program(), {}, out), "out0 out1 out2 ");
}

TEST(ActiveValues, ReachTheExportsOfALoopAndNotItsIterations) {
  Builder b("exports");
  const Var x = b.State("x", {});
  WhileOptions options;
  options.site = "loop";
  const LoopResult loop = b.While(
      options, {b.Literal(1.0)}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{carried[0], b.Literal(2.0), std::nullopt, {x * carried[0]}};
      },
      [](const Vars& carried, const Vars&, const Vars&) { return carried; });
  const Var carried = b.Named(loop.carried[0], "carried");
  const Var exported = b.Named(loop.exports[0], "exported");
  b.SetNext({exported});
  EXPECT_EQ(Active(b.program(), {}, {carried, exported, loop.iterations}), "exported ");
}

TEST(ActiveValues, OfATerminalCostBeginAtItsArguments) {
  Builder b("terminal");
  const Var x = b.State("x", {});
  b.SetNext({x});
  Var cost;
  b.AddObjective("cost", nullptr, [&](const Vars& states, const Vars&) {
    cost = b.Named(states[0] * states[0], "cost");
    return cost;
  });
  const Region& terminal = b.program().objectives[0].terminal;
  EXPECT_EQ(Active(b.program(), {}, {cost}), "");
  EXPECT_EQ(Active(b.program(), {}, {cost}, &terminal), "cost ");
}

}  // namespace
}  // namespace simgrad::sim
