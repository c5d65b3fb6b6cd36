// What small programs become: statements, views that move nothing, and the orders of sums.
#include "sim/plan/make_plan.h"

#include <string>

#include "gtest/gtest.h"
#include "sim/plan/print.h"
#include "sim/program/builder.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::plan {
namespace {

Plan PlanOf(Builder& builder, Records records = {}) {
  const Program world = *builder.Finish();
  precision::PolicySpec spec;
  spec.preset = "f32";
  return MakePlan(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), records);
}

int CountOf(const std::vector<Statement>& statements, Code code) {
  int count = 0;
  for (const Statement& s : statements) {
    count += (s.code == code ? 1 : 0) + CountOf(s.body, code);
  }
  return count;
}

TEST(MakePlan, ScalarsAreRegistersAndAStepEndsInACommit) {
  Builder b("scalar");
  const Var x = b.State("x", {});
  b.SetNext({x * x});
  EXPECT_EQ(Print(PlanOf(b).step),
            "step\n"
            "  %0: f32 = field0.x[0]\n"
            "  %1: f32 = field0.x[0]\n"
            "  %2: f32 = mul_f32(%0, %1)\n"
            "  commit\n"
            "    field0.x[0] = %2\n");
}

// What the larger or the smaller of a state and a number is called.
std::string FunctionBeside(double bound, bool larger) {
  Builder b("bounded");
  const Var x = b.State("x", {});
  const Var number = b.Literal(bound);
  b.SetNext({larger ? Max(x, number) : Min(number, x)});
  for (const Statement& s : PlanOf(b).step.statements) {
    if (s.code == Code::kCall) return s.function;
  }
  return "";
}

TEST(MakePlan, ABoundIsAskedNoMoreThanItNeeds) {
  EXPECT_EQ(FunctionBeside(0.0, true), "relu_f32");
  EXPECT_EQ(FunctionBeside(-0.0, true), "at_least_f32");
  EXPECT_EQ(FunctionBeside(2.5, true), "at_least_f32");
  EXPECT_EQ(FunctionBeside(0.0, false), "at_most_f32");
  EXPECT_EQ(FunctionBeside(-0.0, false), "min_f32");
  EXPECT_EQ(FunctionBeside(-2.5, false), "at_most_f32");
}

// Of a gradient of 8,000 operations, at the latest after half a million element-operations.
TEST(MakePlan, EndsAtWhicheverLookSaysSo) {
  const Program world = shaped::Chain(OpCode::kSin, 8'000);
  const NumericalProgram lowered =
      *Lower(world, tests::PolicyOf({}), "cost", shaped::WantedOf(world, "cost"));
  int64_t looks = 0;
  PlacedPlan(lowered, {}, [&] {
    ++looks;
    return false;
  });
  EXPECT_GE(looks, 3);
  // A plan costs what this test does: sixteen of the looks, four under sanitizers, or all of them.
  const int64_t stride = IsLong() ? 1 : 1 + looks / (kSanitized ? 4 : 16);
  for (int64_t last = 1; last <= looks; last += stride) {
    int64_t asked = 0;
    const auto stop = [&] { return ++asked == last; };
    EXPECT_THROW(PlacedPlan(lowered, {}, stop), StopRequested) << last;
    EXPECT_EQ(asked, last);
  }
}

TEST(MakePlan, NeighbouringAxesAreOneLoop) {
  Builder b("matrix");
  const Var x = b.State("x", {3, 4});
  b.SetNext({x * x});
  const Plan plan = PlanOf(b);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kEach),
            2);  // the product, and the copy to the field
  for (const Statement& s : plan.step.statements) {
    if (s.code == Code::kEach) {
      EXPECT_EQ(s.number, 12);
    }
  }
}

TEST(MakePlan, SlicesBroadcastsAndReshapesMoveNothing) {
  Builder b("views");
  const Var x = b.State("x", {4, 3});
  const Var row = b.Slice(x, {1, 0}, {1, 3});
  const Var wide = b.Broadcast(b.Reshape(row, {3}), {4, 3}, {1});
  b.SetNext({x + wide});
  const Plan plan = PlanOf(b);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kStore), 2);  // the sum, and the copy to the field
  EXPECT_NE(Print(plan.step).find("field0.x[%1 + 3]"), std::string::npos) << Print(plan.step);
}

TEST(MakePlan, StatesThatChangePlacesAreReadBeforeTheyAreWritten) {
  Builder b("swap");
  const Var x = b.State("x", {});
  const Var y = b.State("y", {});
  b.SetNext({y, x});
  EXPECT_EQ(Print(PlanOf(b).step),
            "step\n"
            "  commit\n"
            "    %0: f32 = field1.y[0]\n"
            "    %1: f32 = field0.x[0]\n"
            "    field0.x[0] = %0\n"
            "    field1.y[0] = %1\n");
}

TEST(MakePlan, APairwiseSumIsItsTree) {
  Builder b("sum");
  const Var x = b.State("x", {5});
  const Var total = b.Reduce(OpCode::kSum, x);
  b.SetNext({b.Broadcast(total, {5}, {})});
  const std::string text = Print(PlanOf(b).step);
  // (0,1)(2,3) 4 - ((0,1),(2,3)) 4 - the root.
  EXPECT_NE(text.find("%5: f32 = add_f32(%0, %1)\n"
                      "  %6: f32 = add_f32(%2, %3)\n"
                      "  %7: f32 = add_f32(%5, %6)\n"
                      "  %8: f32 = add_f32(%7, %4)\n"),
            std::string::npos)
      << text;
}

// The functions that the sum of one number is made with.
std::string SumOfOne(const std::string& preset) {
  Builder b("sum");
  const Var x = b.State("x", {1});
  b.SetNext({b.Broadcast(b.Reduce(OpCode::kSum, x), {1}, {})});
  precision::PolicySpec spec;
  spec.preset = preset;
  const Plan plan = MakePlan(*Lower(*b.Finish(), tests::PolicyOf(spec), "", std::nullopt), {});
  std::string calls;
  for (const Statement& s : plan.step.statements) {
    if (s.code == Code::kCall) calls += s.function + " ";
  }
  return calls;
}

TEST(MakePlan, ASumOfOneNumberIsNotRoundedAgain) {
  EXPECT_EQ(SumOfOne("f32"), "");
  EXPECT_EQ(SumOfOne("bf16_safe"), "");
  EXPECT_EQ(SumOfOne("f16_safe"), "");
  EXPECT_EQ(SumOfOne("bf16_unsafe"), "add_f32 ");  // a sequential sum begins with 0
}

// A loop that halves x until it is below 1.
void Halve(Builder& b) {
  const Var x = b.State("x", {});
  const LoopResult loop = b.While(
      {.site = "halve", .max_iter = 7}, {x}, {},
      [&](const Vars& c, const Vars&) {
        const RoleScope role(b, Role::kTermination);
        return LoopTest{c[0], b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& c, const Vars&, const Vars&) { return Vars{0.5 * c[0]}; });
  b.SetNext({loop.carried[0]});
}

TEST(MakePlan, ALoopLeavesAtItsTestAndAtItsCap) {
  Builder b("loop");
  Halve(b);
  const Plan plan = PlanOf(b);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kRepeat), 1);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kLeave), 2);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kTest), 0);
  EXPECT_EQ(plan.integers, (std::vector<int64_t>{7}));  // the cap is no part of the structure
}

TEST(MakePlan, RecordsAreStatements) {
  Builder b("recorded");
  Halve(b);
  const Plan plan = PlanOf(b, {.decides = true, .looks = true, .ranges = true});
  EXPECT_EQ(CountOf(plan.step.statements, Code::kTest), 1);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kRun), 1);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kLook), 1);
  EXPECT_EQ(CountOf(plan.step.statements, Code::kStored), 1);
  ASSERT_EQ(plan.terminations.size(), 1u);
  EXPECT_EQ(plan.terminations[0].elements, 1);
}

TEST(MakePlan, AnAdditionIntoAStateIsARecord) {
  const auto count = [](Records records) {
    Builder b("drift");
    const Var x = b.State("x", {});
    const Var product = (x + x) * x;  // its addition is not behind the state
    b.SetNext({product - x});
    const Plan plan = PlanOf(b, records);
    EXPECT_EQ(plan.additions.size(), records.ranges ? 1u : 0u);
    return CountOf(plan.step.statements, Code::kAbsorbed);
  };
  EXPECT_EQ(count({.ranges = true}), 1);
  EXPECT_EQ(count({.decides = true, .looks = true}), 0);
}

TEST(MakePlan, EmptyValuesLeaveNoLoops) {
  Builder b("empty");
  const Var x = b.State("x", {0});
  b.SetNext({x * x});
  EXPECT_EQ(CountOf(PlanOf(b).step.statements, Code::kEach), 0);
}

}  // namespace
}  // namespace simgrad::sim::plan
