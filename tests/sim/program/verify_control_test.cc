// Mistakes in branches, predicates, scans and named tests are refused with the field they are in.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/verify.h"

namespace simgrad::sim {
namespace {

// In this order: an event, a cond, a for that scans x, a while with a predicate, a call with a vjp, a halt.
Program Control() {
  Builder b("control");
  const Var x = b.State("x", {3});
  const Var first = b.Reshape(b.Slice(x, {0}, {1}), {});
  const Var high = b.Event("high", first, Comparison::kGt, first);
  const auto twice = [&](const Vars& args) { return Vars{args[0] + args[0]}; };
  const Var y = b.Cond(high, {x}, {[](const Vars& args) { return args; }, twice})[0];
  const Vars sums =
      b.Scan(3, {first}, {y}, false, [](Var, const Vars& carried, const Vars& element) {
        return Vars{carried[0] + element[0], element[0]};
      });
  WhileOptions options;
  options.site = "loop";
  const LoopResult loop = b.While(
      options, {sums[0]}, {},
      [&](const Vars& now, const Vars&) {
        return LoopPredicate{b.Apply(OpCode::kLt, {now[0], now[0]}), {}};
      },
      [](const Vars& now, const Vars&, const Vars&) { return now; });
  b.Call(
      {x, first},
      [](const Vars& args) {
        return Vars{args[0] + args[0], args[1]};
      },
      [](const Vars& args, const Vars&, const Vars& g) {
        return Vars{g[0], args[1]};
      });
  b.Halt("far", high);
  b.Export("last", loop.carried[0]);
  b.SetNext({sums[1]});
  return *b.Finish();
}

Op& OpOf(Program& program, OpCode code) {
  for (Op& op : program.step.ops) {
    if (op.code == code) return op;
  }
  ADD_FAILURE() << "no such operation";
  return program.step.ops.front();
}

struct Mistake {
  std::string name;
  OpCode code;
  std::function<void(Program&, Op&)> plant;
  std::string field;  // what the status names ends with it
};

class ControlMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(ControlMistakes, AreRefusedWithTheirField) {
  Program program = Control();
  ASSERT_TRUE(Verify(program).ok()) << Verify(program);
  GetParam().plant(program, OpOf(program, GetParam().code));
  const absl::Status status = Verify(program);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string field = FieldOf(status);
  ASSERT_GE(field.size(), GetParam().field.size()) << status;
  EXPECT_EQ(field.substr(field.size() - GetParam().field.size()), GetParam().field) << status;
}

INSTANTIATE_TEST_SUITE_P(
    Verify, ControlMistakes,
    testing::Values(
        Mistake{"ChoiceIsReal", OpCode::kCond,
                [](Program& p, Op& op) { op.operands[0] = p.step.ops[1].results[0]; },
                ".operands[0]"},
        Mistake{"OneRegion", OpCode::kCond, [](Program&, Op& op) { op.regions.pop_back(); },
                ".regions"},
        Mistake{"RegionLacksItsArgument", OpCode::kCond,
                [](Program&, Op& op) { op.regions[0].args.clear(); }, ".regions[0].args"},
        Mistake{"RegionYieldsNothing", OpCode::kCond,
                [](Program&, Op& op) { op.regions[1].yields.clear(); }, ".regions[1].yields"},
        Mistake{"RegionYieldsAnotherType", OpCode::kCond,
                [](Program& p, Op& op) { op.regions[1].yields[0] = p.step.ops[1].results[0]; },
                ".regions[1].yields[0]"},
        Mistake{"PredicateIsReal", OpCode::kWhile,
                [](Program&, Op& op) { op.regions[0].yields[0] = op.regions[0].args[0]; },
                ".regions[0].yields[0]"},
        Mistake{"PredicateWithEntry", OpCode::kWhile,
                [](Program&, Op& op) { op.attributes.has_entry = true; }, ".has_entry"},
        Mistake{"ScanOfAnotherLength", OpCode::kFor,
                [](Program&, Op& op) { op.attributes.max_iter = 4; }, ".operands[1]"},
        Mistake{"MoreScannedThanOperands", OpCode::kFor,
                [](Program&, Op& op) { op.attributes.scanned = 2; }, ".carried"},
        Mistake{"StackOfAnotherType", OpCode::kFor,
                [](Program&, Op& op) { op.regions[0].yields[1] = op.regions[0].args[0]; },
                ".regions[0].yields[1]"},
        Mistake{"CallWithThreeRegions", OpCode::kCall,
                [](Program&, Op& op) { op.regions.emplace_back(); }, ".regions"},
        Mistake{"CallWithoutResults", OpCode::kCall, [](Program&, Op& op) { op.results.clear(); },
                ".results"},
        Mistake{"BodyReadsAround", OpCode::kCall,
                [](Program& p, Op& op) { op.regions[0].yields[1] = p.step.ops[1].results[0]; },
                ".regions[0].yields[1]"},
        Mistake{"VjpReadsAround", OpCode::kCall,
                [](Program& p, Op& op) { op.regions[1].yields[1] = p.step.ops[1].results[0]; },
                ".regions[1].yields[1]"},
        Mistake{"VjpLacksACotangent", OpCode::kCall,
                [](Program&, Op& op) { op.regions[1].args.pop_back(); }, ".regions[1].args"},
        Mistake{"VjpYieldsTooFew", OpCode::kCall,
                [](Program&, Op& op) { op.regions[1].yields.pop_back(); }, ".regions[1].yields"},
        Mistake{
            "VjpYieldsAnotherType", OpCode::kCall,
            [](Program&, Op& op) { std::swap(op.regions[1].yields[0], op.regions[1].yields[1]); },
            ".regions[1].yields[0]"},
        Mistake{"HaltOnAReal", OpCode::kHalt,
                [](Program& p, Op& op) { op.operands[0] = p.step.ops[1].results[0]; }, ".operands"},
        Mistake{"HaltGivesSomething", OpCode::kHalt,
                [](Program& p, Op& op) {
                  op.results.push_back(p.AddValue({ElementType::kBool, {}}));
                },
                ".results"},
        Mistake{"HaltInARegion", OpCode::kHalt,
                [](Program& p, Op& op) {
                  Op halt = op;
                  p.step.ops.pop_back();
                  OpOf(p, OpCode::kCond).regions[0].ops.push_back(halt);
                },
                ".code"},
        Mistake{"HaltWithoutAName", OpCode::kHalt,
                [](Program&, Op& op) { op.attributes.site.clear(); }, ".decision_site"},
        Mistake{"KindWithoutLevel", OpCode::kEvent,
                [](Program&, Op& op) { op.attributes.kind = TestKind::kGuard; }, ".test_kind"},
        Mistake{"NameWithoutLevel", OpCode::kWhile,
                [](Program&, Op& op) { op.regions[0].ops[0].attributes.site = "small"; },
                ".decision_site"}),
    [](const testing::TestParamInfo<Mistake>& mistake) { return mistake.param.name; });

TEST(VerifyControl, DrawsStandInTheStepAlone) {
  const auto draw = [](Builder& b) { return b.Do(OpCode::kUniform, {}); };
  Builder step("step");
  step.SetNext({step.State("x", {}) + draw(step)});
  EXPECT_TRUE(step.Finish().ok());
  Builder initial("initial");
  const Var x = initial.State("x", {});
  initial.SetInitial([&] { return Vars{x + draw(initial)}; });
  initial.SetNext({x});
  EXPECT_EQ(FieldOf(initial.Finish().status()), "initial.ops[0].code");
  Builder vjp("vjp");
  const Var y = vjp.State("x", {});
  vjp.SetNext(vjp.Call(
      {y}, [](const Vars& args) { return args; },
      [&](const Vars&, const Vars&, const Vars& g) { return Vars{g[0] * draw(vjp)}; }));
  EXPECT_EQ(FieldOf(vjp.Finish().status()), "step.ops[0].regions[1].ops[0].code");
}

TEST(VerifyControl, StochasticCastsStandInTheStepAlone) {
  const auto cast = [](Builder& b, Var x, CastRounding rounding) {
    return b.Cast(x, Format::kBf16, Overflow::kIeee, rounding);
  };
  Builder step("step");
  step.SetNext({cast(step, step.State("x", {}), CastRounding::kStochastic)});
  EXPECT_TRUE(step.Finish().ok());
  for (const CastRounding rounding : {CastRounding::kStochastic, CastRounding::kTowardZero}) {
    Builder initial("initial");
    const Var x = initial.State("x", {});
    initial.SetInitial([&] { return Vars{cast(initial, x, rounding)}; });
    initial.SetNext({x});
    const absl::Status status = initial.Finish().status();
    if (rounding == CastRounding::kTowardZero) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_EQ(FieldOf(status), "initial.ops[0].rounding");
    }
  }
}

// A terminal cost reads states alone where an instance may stand still.
TEST(VerifyControl, AHaltedInstanceHasNoObservables) {
  for (const bool halts : {false, true}) {
    Builder b("fall");
    const Var x = b.State("x", {});
    const Var next = x - b.Literal(1.0);
    if (halts) b.Halt("low", b.Event("low", next, Comparison::kLt, x));
    b.Export("seen", next);
    b.SetNext({next});
    b.AddObjective("end", nullptr, [](const Vars&, const Vars& exports) { return exports[0]; });
    EXPECT_EQ(b.Finish().ok(), !halts);
  }
}

// A bool that hangs on an unnamed comparison may choose where the program states a level.
TEST(VerifyControl, ALevelLetsComparisonsDecide) {
  for (const TestLevel level : {TestLevel::kDeclared, TestLevel::kLoops, TestLevel::kAll}) {
    Builder b("level");
    b.program().level = level;
    const Var x = b.State("x", {});
    const Var small = b.Apply(OpCode::kLt, {x, b.Literal(1.0)});
    b.SetNext({b.Cond(small, {x},
                      {[](const Vars& args) { return args; },
                       [&](const Vars& args) { return Vars{2.0 * args[0]}; }})[0]});
    EXPECT_EQ(b.Finish().ok(), level != TestLevel::kDeclared);
  }
}

}  // namespace
}  // namespace simgrad::sim
