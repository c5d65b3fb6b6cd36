// Which inputs a lowered program reads, and the numbers of its values.
#include "sim/program/renumber.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/program/builder.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

NumericalProgram Of(Builder& b) {
  NumericalProgram numerical;
  numerical.program = b.program();
  return numerical;
}

TEST(MarkUsedInputs, AreTheStatesAndWhatARegionReadsOrAnExportShows) {
  Builder b("used");
  const Var x = b.State("x", {});
  b.State("unread", {});
  const Var read = b.Param("read", {}, 1.0);
  const Var shown = b.Param("shown", {}, 1.0);
  b.Param("nothing", {}, 1.0);
  b.Export("shown", shown);
  b.SetNext({x * read, x});
  PassBudget budget;
  std::string used;
  for (const Input& input : MarkUsedInputs(Of(b), budget).program.inputs) {
    if (input.used) used += input.name + " ";
  }
  EXPECT_EQ(used, "x unread read shown ");
}

TEST(Renumber, NumbersInputsAndThenDefinitionsInTheOrderOfTheText) {
  Builder b("order");
  const Var x = b.State("x", {});
  const Var first = b.Apply(OpCode::kSin, {x});
  const Var second = b.Apply(OpCode::kCos, {first});
  b.SetNext({second});
  NumericalProgram numerical = Of(b);
  // The same program with other numbers: the two results change places in the table.
  std::swap(numerical.program.step.ops[0].results, numerical.program.step.ops[1].results);
  numerical.program.step.ops[1].operands = numerical.program.step.ops[0].results;
  numerical.program.step.yields = numerical.program.step.ops[1].results;
  PassBudget budget;
  const Program program = Renumber(numerical, budget).program;
  EXPECT_EQ(program.step.ops[0].results[0], static_cast<ValueId>(1));
  EXPECT_EQ(program.step.ops[1].operands[0], static_cast<ValueId>(1));
  EXPECT_EQ(program.step.ops[1].results[0], static_cast<ValueId>(2));
  EXPECT_EQ(program.step.yields[0], static_cast<ValueId>(2));
  EXPECT_EQ(Print(program), Print(b.program()));
}

TEST(Renumber, EndsWhereSomethingIsReadThatNothingDefines) {
  Builder b("undefined");
  const Var x = b.State("x", {});
  b.Export("nothing", x);
  b.program().exports[0].value = b.program().AddValue({ElementType::kReal, {}}, "nothing");
  b.SetNext({x});
  PassBudget budget;
  const absl::Status ended = WithinBudget([&] { Renumber(Of(b), budget); });
  EXPECT_EQ(ended.code(), absl::StatusCode::kInternal);
}

TEST(Renumber, DropsWhatNothingDefines) {
  Builder b("gaps");
  const Var x = b.State("x", {});
  b.program().AddValue({ElementType::kReal, {}}, "gap");
  const Var y = b.Named(b.Apply(OpCode::kSin, {x}), "y");
  b.SetNext({y});
  PassBudget budget;
  const Program program = Renumber(Of(b), budget).program;
  ASSERT_EQ(program.values.size(), 2u);
  EXPECT_EQ(program.values[1].name, "y");
}

TEST(Renumber, NumbersWhatIsInsideALoopBehindItsResults) {
  Builder b("loops");
  const Var x = b.State("x", {});
  b.SetNext(b.For(2, {x}, [](Var, const Vars& carried) { return Vars{carried[0] * carried[0]}; }));
  PassBudget budget;
  const Program program = Renumber(Of(b), budget).program;
  const Op& loop = program.step.ops[0];
  EXPECT_EQ(loop.results[0], static_cast<ValueId>(1));
  EXPECT_EQ(loop.regions[0].args[0], static_cast<ValueId>(2));
  EXPECT_EQ(loop.regions[0].ops[0].results[0], static_cast<ValueId>(4));
}

}  // namespace
}  // namespace simgrad::sim
