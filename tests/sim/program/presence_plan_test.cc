// Where cotangents will be present, of small regions.
#include "sim/program/presence_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/program/step_shape.h"

namespace simgrad::sim {
namespace {

using enum Presence;
using List = std::vector<Presence>;

// The plan of a step, whose yields are entered and whose states are left.
class Plan {
 public:
  explicit Plan(Builder& b) : step_(b), plan_(step_.budget()) {}

  // What the states are left with where the yields are entered so.
  List Left(const List& entered) {
    List left;
    scope_ = plan_.Once(step_.get(), entered, &left);
    return left;
  }
  // The least presence that comes round, joined with `carried`.
  List Round(List carried) {
    scope_ = plan_.Repeated(step_.get(), carried, carried);
    return carried;
  }
  // Of the last loop of the step, in the scope made last.
  PresencePlan::LoopId Loop() const { return plan_.LoopOf(scope_, 0); }
  const PresencePlan& plan() const { return plan_; }

 private:
  tests::StepShape step_;
  PresencePlan plan_;
  PresencePlan::ScopeId scope_ = PresencePlan::ScopeId::kNone;
};

TEST(PresencePlan, AnOperationHandsOnWhatItsResultHas) {
  Builder b("sine");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  for (const Presence presence : {kNever, kAlways, kMasked}) {
    EXPECT_EQ(Plan(b).Left({presence}), List{presence});
  }
}

TEST(PresencePlan, AChoiceMasks) {
  Builder b("choice");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.SetNext({Max(x, y), b.Literal(0.0)});
  EXPECT_EQ(Plan(b).Left({kAlways, kNever}), (List{kMasked, kMasked}));
}

TEST(PresencePlan, OneContributionThatIsAlwaysThereIsEnough) {
  Builder b("merge");
  const Var x = b.State("x", {});
  b.SetNext({Relu(x) + x});
  EXPECT_EQ(Plan(b).Left({kAlways}), List{kAlways});
}

TEST(PresencePlan, WhatHasNoDerivativeHandsOnNothing) {
  Builder b("floor");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kFloor, {x})});
  EXPECT_EQ(Plan(b).Left({kAlways}), List{kNever});
}

TEST(PresencePlan, ALoopJoinsWhatEntersItWithWhatComesRound) {
  Builder b("swap");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.SetNext(b.For(2, {x, y}, [](Var, const Vars& carried) {
    return Vars{carried[1], carried[0]};
  }));
  Plan plan(b);
  EXPECT_EQ(plan.Left({kAlways, kNever}), (List{kMasked, kMasked}));
  EXPECT_EQ(plan.plan().PresenceOf(plan.Loop()), (List{kMasked, kMasked}));
  EXPECT_EQ(plan.Left({kAlways, kAlways}), (List{kAlways, kAlways}));
}

TEST(PresencePlan, ALoopThatNeverRunsGivesWhatItIsGiven) {
  Builder b("none");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.SetNext(b.For(0, {x, y}, [](Var, const Vars& carried) {
    return Vars{carried[1], carried[0]};
  }));
  EXPECT_EQ(Plan(b).Left({kAlways, kNever}), (List{kAlways, kNever}));
}

TEST(PresencePlan, ALoopIntoWhichNoCotangentComesIsNotPlanned) {
  Builder b("unwritten");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Vars out = b.For(2, {x}, [](Var, const Vars& carried) { return carried; });
  b.SetNext({out[0], y});
  Plan plan(b);
  EXPECT_EQ(plan.Left({kNever, kAlways}), (List{kNever, kAlways}));
  EXPECT_EQ(plan.Loop(), PresencePlan::LoopId::kNone);
}

TEST(PresencePlan, ACaptureIsThreadedThroughItsLoop) {
  Builder b("capture");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  const Vars out = b.For(2, {x}, [&](Var, const Vars& carried) { return Vars{carried[0] * y}; });
  b.SetNext({out[0], b.Literal(0.0)});
  Plan plan(b);
  // The loop may not get there: what enters it as never leaves it masked.
  EXPECT_EQ(plan.Left({kAlways, kNever}), (List{kAlways, kMasked}));
  EXPECT_EQ(plan.plan().PresenceOf(plan.Loop()), (List{kAlways, kMasked}));
}

TEST(PresencePlan, ATestIsPlannedForEachWayInWhichItIsReversed) {
  for (const CapOrder order : {CapOrder::kTestFirst, CapOrder::kCapFirst}) {
    Builder b("tests");
    const Var x = b.State("x", {});
    WhileOptions options;
    options.site = "loop";
    options.cap_order = order;
    const LoopResult loop = b.While(
        options, {x}, {},
        [&](const Vars& carried, const Vars&) {
          return LoopTest{
              carried[0], b.Literal(1.0), std::nullopt, {b.Apply(OpCode::kSin, carried)}};
        },
        [](const Vars&, const Vars& exports, const Vars&) { return exports; });
    b.SetNext({loop.exports[0]});
    Plan plan(b);
    plan.Left({kAlways});
    const auto inside = [&](PresencePlan::Which which) {
      return plan.plan().Inside(plan.Loop(), which) != PresencePlan::ScopeId::kNone;
    };
    EXPECT_TRUE(inside(PresencePlan::kBody));
    EXPECT_TRUE(inside(PresencePlan::kTestInner));
    EXPECT_TRUE(inside(PresencePlan::kTestLast));
    EXPECT_EQ(inside(PresencePlan::kTestBoth), order == CapOrder::kCapFirst);
  }
}

TEST(PresencePlan, WhatComesRoundTheStepsIsJoinedUntilItStays) {
  Builder b("shift");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.State("z", {});
  b.SetNext({x, x, y});
  // A cotangent of z is one of y a step before, and one of x two steps before.
  EXPECT_EQ(Plan(b).Round({kAlways, kNever, kAlways}), (List{kAlways, kMasked, kMasked}));
}

TEST(PresencePlan, CountsTheOperationsThatAreReversedFromTheLastUp) {
  Builder b("readers");
  const Var x = b.State("x", {});
  const Var first = b.Apply(OpCode::kSin, {x});
  b.Apply(OpCode::kCos, {x});  // nothing reads it
  b.SetNext({b.Apply(OpCode::kTanh, {first})});
  Plan plan(b);
  plan.Left({kAlways});
  const std::vector<Op>& ops = b.program().step.ops;
  size_t next = 0;
  const auto scope = static_cast<PresencePlan::ScopeId>(0);
  EXPECT_GE(plan.plan().ReaderOf(scope, ops[2], next), 0);
  EXPECT_EQ(plan.plan().ReaderOf(scope, ops[1], next), -1);
  EXPECT_GE(plan.plan().ReaderOf(scope, ops[0], next), 0);
  EXPECT_EQ(next, 2u);
}

}  // namespace
}  // namespace simgrad::sim
