// Which results an executor must look at.
#include "sim/program/detect.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "sim/program/builder.h"
#include "sim/program/infinities.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

// The values of a step that are looked at, by name; its yields are looked at anyway.
std::string Looks(Builder& b) {
  NumericalProgram numerical;
  numerical.program = b.program();
  numerical.policy = tests::PolicyOf({.preset = "f32"});
  Program& program = numerical.program;
  for (Value& value : program.values) {
    if (value.type.element == ElementType::kReal) value.format = Format::kF32;
  }
  PassBudget budget;
  numerical = MarkInfinities(std::move(numerical), budget);
  const Detection found = DetectNonFinite(numerical, program.step, program.step.yields);
  std::string names;
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (found.look[i]) names += program.values[i].name + " ";
  }
  return names;
}

TEST(DetectNonFinite, WhatGoesOnIntoAYieldIsNotLookedAt) {
  Builder b("carried");
  const Var x = b.State("x", {});
  const Var product = b.Named(x * x, "product");
  b.SetNext({product + x});
  EXPECT_EQ(Looks(b), "");
}

TEST(DetectNonFinite, WhatMayVanishIsLookedAt) {
  Builder b("vanishes");
  const Var x = b.State("x", {});
  const Var product = b.Named(x * x, "product");
  b.SetNext({b.Apply(OpCode::kTanh, {product})});
  EXPECT_EQ(Looks(b), "product ");
}

TEST(DetectNonFinite, ADividendGoesOnAndADivisorDoesNot) {
  Builder b("division");
  const Var x = b.State("x", {});
  const Var above = b.Named(x * x, "above");
  const Var below = b.Named(x + x, "below");
  b.SetNext({above / below});
  EXPECT_EQ(Looks(b), "below ");
}

TEST(DetectNonFinite, WhatCannotBeBornNonFiniteIsNotLookedAt) {
  Builder b("finite");
  const Var x = b.State("x", {});
  const Var sine = b.Named(b.Apply(OpCode::kSin, {x}), "sine");
  b.SetNext({b.Apply(OpCode::kTanh, {sine})});
  EXPECT_EQ(Looks(b), "");
}

TEST(DetectNonFinite, OfAChainOnlyTheEndIsLookedAt) {
  Builder b("chain");
  const Var x = b.State("x", {});
  const Var first = b.Named(x * x, "first");
  const Var second = b.Named(first + x, "second");
  b.SetNext({Max(second, x)});
  EXPECT_EQ(Looks(b), "second ");
}

TEST(DetectNonFinite, AUseInALoopDoesNotCoverWhatStandsOutside) {
  Builder b("outside");
  const Var x = b.State("x", {});
  const Var product = b.Named(x * x, "product");
  b.SetNext(b.For(2, {x}, [&](Var, const Vars& carried) { return Vars{carried[0] + product}; }));
  EXPECT_EQ(Looks(b), "product ");
}

TEST(DetectNonFinite, ACarriedValueIsCoveredWhereTheBodyHandsItOn) {
  for (const bool hands_on : {true, false}) {
    Builder b("round");
    const Var x = b.State("x", {});
    const Var entering = b.Named(x * x, "entering");
    b.SetNext(b.For(2, {entering}, [&](Var, const Vars& carried) {
      return Vars{hands_on ? carried[0] + x : b.Apply(OpCode::kTanh, {carried[0]})};
    }));
    EXPECT_EQ(Looks(b), hands_on ? "" : "entering ");
  }
}

TEST(DetectNonFinite, OfALoopThatNeverRunsTheBodyCoversNothing) {
  Builder b("never");
  const Var x = b.State("x", {});
  const Var entering = b.Named(x * x, "entering");
  b.SetNext(b.For(0, {entering}, [&](Var, const Vars& carried) {
    return Vars{b.Apply(OpCode::kTanh, {carried[0]})};
  }));
  EXPECT_EQ(Looks(b), "");
}

TEST(DetectNonFinite, ASumOfOneNumberIsThatNumber) {
  for (const int64_t terms : {1, 2}) {
    Builder b("sums");
    const Var x = b.State("x", {terms});
    const Var sum = b.Named(b.Reduce(OpCode::kSum, x), "sum");
    b.SetNext({b.Broadcast(b.Apply(OpCode::kTanh, {sum}), {terms}, {})});
    EXPECT_EQ(Looks(b), terms == 1 ? "" : "sum ");
  }
}

TEST(DetectNonFinite, ALiteralIsLookedAtWhereItsFormatCannotHoldIt) {
  for (const double number : {1e30, 1e300}) {
    Builder b("literals");
    const Var x = b.State("x", {});
    b.SetNext({Max(x, b.Named(b.Literal(number), "number"))});
    EXPECT_EQ(Looks(b), number > 1e40 ? "number " : "");
  }
}

// The state goes where only NaN is seen, so it does not cover the quotient; an infinite literal is no birth.
TEST(DetectNonFinite, WhatGoesIntoAnInfinityByIntentIsLookedAtBefore) {
  for (const double number : {1.0, std::numeric_limits<double>::infinity()}) {
    Builder b("bounds");
    const Var x = b.State("x", {});
    const Var quotient = b.Named(x / b.Literal(3.0), "quotient");
    const Var bound = b.Named(b.Literal(number), "bound");
    b.SetNext({b.Named(quotient + bound, "sum")});
    EXPECT_EQ(Looks(b), number == 1.0 ? "" : "quotient ");
  }
}

}  // namespace
}  // namespace simgrad::sim
