// The numbers of draws, and the inputs that they hang on.
#include "sim/program/draws.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

using enum OpCode;

const Type kNumber{ElementType::kReal, {}};

Program Numbered(Builder& b) {
  PassBudget budget;
  return NumberDraws(b.program(), budget);
}

void AddDraws(const Region& region, std::vector<int32_t>& draws) {
  for (const Op& op : region.ops) {
    if (op.code == kUniform || op.code == kNormal || IsStochastic(op)) {
      draws.push_back(op.attributes.draw);
    }
    for (const Region& nested : op.regions) AddDraws(nested, draws);
  }
}
std::vector<int32_t> DrawsOf(const Region& region) {
  std::vector<int32_t> draws;
  AddDraws(region, draws);
  return draws;
}

Var Chance(Var x) { return x.builder->Cast(x, Format::kBf16, {}, CastRounding::kStochastic); }
Op CastOf(Program& program, ValueId x) {
  Op op{.code = kCast, .operands = {x}, .results = {program.AddValue(kNumber)}};
  op.attributes.rounding = CastRounding::kStochastic;
  return op;
}

TEST(NumberDraws, AProgramWithoutDrawsStays) {
  Builder b("certain");
  const Var x = b.State("x", {});
  b.SetNext({x + x});
  EXPECT_EQ(Print(Numbered(b)), Print(b.program()));
}

TEST(NumberDraws, DrawsAreNumberedInTheOrderOfTheText) {
  Builder b("order");
  const Var x = b.State("x", {});
  const Var first = b.Do(kUniform, {});
  const Vars turned =
      b.For(2, {x}, [&](Var, const Vars& carried) { return Vars{carried[0] + b.Do(kNormal, {})}; });
  b.SetNext({Chance(first + turned[0])});
  EXPECT_EQ(DrawsOf(Numbered(b).step), (std::vector<int32_t>{0, 1, 2}));
}

TEST(NumberDraws, ADrawReadsTheKeyAndTheStepBehindItsOperands) {
  for (const bool reads_step : {false, true}) {
    Builder b("inputs");
    const Var x = b.State("x", {});
    if (reads_step) b.StepIndex();
    b.SetNext({Chance(x)});
    const Program numbered = Numbered(b);
    const std::vector<int32_t> steps = numbered.InputsOf(InputKind::kStep);
    const Input* const key = numbered.FindInput(InputKind::kData, kRandomKey);
    ASSERT_TRUE(key != nullptr && steps.size() == 1);
    EXPECT_EQ(numbered[key->value].type, (Type{ElementType::kI64, {}}));
    const ValueId step = numbered.inputs[static_cast<size_t>(steps[0])].value;
    EXPECT_EQ(numbered.step.ops[0].operands, (std::vector<ValueId>{x.id, key->value, step}));
    EXPECT_EQ(numbered.inputs.size(), 3u);
  }
}

TEST(NumberDraws, TheirInputsStandAtTheEnd) {
  Builder b("end");
  const Var x = b.State("x", {});
  b.Param("k", {}, 1.0);
  b.SetNext({x + b.Do(kUniform, {})});
  const Program numbered = Numbered(b);
  EXPECT_EQ(numbered.inputs[1].name, "k");
  EXPECT_EQ(numbered.inputs[2].name, kRandomKey);
}

// A step with a draw, and casts of a policy in each region.
class NumberCastsTest : public testing::Test {
 protected:
  NumberCastsTest() : b_("casts") {
    const Var x = b_.State("x", {});
    b_.SetNext({x + b_.Do(kUniform, {})});
    b_.SetInitial([&] { return Vars{x}; });
    b_.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
    PassBudget budget;
    numerical_.program = NumberDraws(b_.program(), budget);
    x_ = x.id;
  }
  void AddCast(Region& region) { region.ops.push_back(CastOf(numerical_.program, x_)); }
  NumericalProgram Numbered() {
    PassBudget budget;
    return NumberCasts(numerical_, budget);
  }

  Builder b_;
  NumericalProgram numerical_;
  ValueId x_;
};

TEST_F(NumberCastsTest, WithoutCastsNothingIsAdded) {
  EXPECT_EQ(Print(Numbered().program), Print(numerical_.program));
}

TEST_F(NumberCastsTest, CastsAreNumberedBehindTheDrawsOfTheWorld) {
  AddCast(numerical_.program.objectives[0].terminal);
  AddCast(numerical_.program.initial);
  AddCast(numerical_.program.step);
  AddCast(numerical_.program.step);
  const Program numbered = Numbered().program;
  EXPECT_EQ(DrawsOf(numbered.step), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(DrawsOf(numbered.initial), std::vector<int32_t>{3});
  EXPECT_EQ(DrawsOf(numbered.objectives[0].terminal), std::vector<int32_t>{4});
  EXPECT_EQ(numbered.inputs.size(), numerical_.program.inputs.size());
}

TEST_F(NumberCastsTest, OutsideStepsTheStepIsTheNumberNought) {
  AddCast(numerical_.program.initial);
  const Program numbered = Numbered().program;
  const Op& zero = numbered.initial.ops.front();
  ASSERT_EQ(zero.code, kLiteral);
  EXPECT_EQ(zero.attributes.literal, std::vector<double>{0.0});
  EXPECT_EQ(numbered.initial.ops.back().operands[2], zero.results[0]);
}

TEST_F(NumberCastsTest, TheAdjointCountsFromANumberOfItsOwn) {
  numerical_.adjoint_spec.emplace();
  Adjoint& adjoint = numerical_.adjoint.emplace();
  for (Region* region : {&adjoint.terminal, &adjoint.last.emplace(), &adjoint.inner}) {
    AddCast(*region);
  }
  AddCast(numerical_.program.step);
  const NumericalProgram numbered = Numbered();
  EXPECT_EQ(DrawsOf(numbered.program.step), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(DrawsOf(numbered.adjoint->terminal), std::vector<int32_t>{kFirstAdjointDraw});
  EXPECT_EQ(DrawsOf(*numbered.adjoint->last), std::vector<int32_t>{kFirstAdjointDraw + 1});
  EXPECT_EQ(DrawsOf(numbered.adjoint->inner), std::vector<int32_t>{kFirstAdjointDraw + 2});
  EXPECT_EQ(numbered.adjoint_spec->wanted.size(), numbered.program.inputs.size());
}

}  // namespace
}  // namespace simgrad::sim
