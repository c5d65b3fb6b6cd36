// Every mistake a program can contain is refused with the field it is in.

#include "sim/program/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/worlds/worlds.h"

namespace simgrad::sim {
namespace {

// x' = the halving of x until it is below 1, with an event.
Program Halving() {
  Builder b("halving");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  const Var low = b.Event("low", x, Comparison::kLt, b.Literal(4.0));
  WhileOptions options;
  options.site = "halve";
  options.max_iter = 10;
  const LoopResult loop = b.While(
      options, {x}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{carried[0], b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) { return Vars{k * carried[0]}; });
  b.SetNext({Select(low, loop.carried[0], x)});
  b.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  return *b.Finish();
}

Op& Loop(Program& program) {
  for (Op& op : program.step.ops) {
    if (op.code == OpCode::kWhile) return op;
  }
  ADD_FAILURE() << "no loop";
  return program.step.ops.front();
}

struct Mistake {
  std::string name;
  std::function<void(Program&)> plant;
  std::string field;  // the status names it, or what begins with it
};

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreRefusedWithTheirField) {
  Program program = Halving();
  ASSERT_TRUE(Verify(program).ok());
  GetParam().plant(program);
  const absl::Status status = Verify(program);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status).rfind(GetParam().field, 0), 0u) << status;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Verify, Mistakes,
    testing::Values(
        Mistake{"NoState", [](Program& p) { p.inputs[0].kind = InputKind::kParam; }, "inputs"},
        Mistake{"NameTwice", [](Program& p) { p.inputs.push_back(p.inputs[1]); }, "inputs[2].name"},
        Mistake{"EmptyName", [](Program& p) { p.inputs[1].name = ""; }, "inputs[1].name"},
        Mistake{"NameWithSpace", [](Program& p) { p.inputs[1].name = "a b"; }, "inputs[1].name"},
        Mistake{"NoSuchValue", [](Program& p) { p.inputs[1].value = static_cast<ValueId>(100000); },
                "inputs[1].value"},
        Mistake{"InfiniteDefault", [](Program& p) { p.inputs[1].default_value = kInf; },
                "inputs[1].default_value"},
        Mistake{"DefaultThatItsTypeDoesNotHold",
                [](Program& p) {
                  p.values[static_cast<size_t>(p.inputs[1].value)].type.element = ElementType::kU8;
                  p.inputs[1].default_value = 256;
                },
                "inputs[1].default_value"},
        Mistake{"NegativeAxis", [](Program& p) { p.values[0].type.shape = {-1}; },
                "values[0].shape"},
        Mistake{"HugeShape",
                [](Program& p) {
                  p.values[0].type.shape = {1 << 30, 1 << 30, 1 << 30};
                },
                "values[0].shape"},
        Mistake{"ManyHugeValues",
                [](Program& p) {
                  Value big;
                  big.type.shape = {1 << 20};
                  p.values.resize(50, big);
                },
                "values"},
        Mistake{"FormatGiven", [](Program& p) { p.values[0].format = Format::kF16; }, "values[0]"},
        Mistake{"UseBeforeDefinition",
                [](Program& p) { std::swap(p.step.ops.front(), p.step.ops.back()); }, "step.ops["},
        Mistake{"DefinedTwice", [](Program& p) { p.step.ops[1].results = p.step.ops[0].results; },
                "step.ops[1]"},
        Mistake{"WrongOperandCount", [](Program& p) { p.step.ops.back().operands.pop_back(); },
                "step.ops[3].operands"},
        Mistake{"WrongResultType",
                [](Program& p) { p[p.step.ops.back().results[0]].type.shape = {2}; }, "step."},
        Mistake{"RoleOfTheAdjoint", [](Program& p) { p.step.ops[0].role = Role::kAdjoint; },
                "step.ops[0].role"},
        Mistake{"AdjointOperation", [](Program& p) { p.step.ops[0].code = OpCode::kTape; },
                "step.ops[0].code"},
        Mistake{"LiteralNaN",
                [](Program& p) {
                  p.step.ops[0].attributes.literal = {std::numeric_limits<double>::quiet_NaN()};
                },
                "step.ops[0].literal"},
        Mistake{"LiteralOfWrongLength",
                [](Program& p) {
                  p.step.ops[0].attributes.literal = {1, 2, 3};
                },
                "step.ops[0].literal"},
        Mistake{"EndlessLoop", [](Program& p) { Loop(p).attributes.max_iter = 1'000'000'000; },
                "step.ops[2].max_iter"},
        Mistake{"LoopWithoutIteration", [](Program& p) { Loop(p).attributes.max_iter = 0; },
                "step.ops[2].max_iter"},
        Mistake{"CarriedCountWrong", [](Program& p) { Loop(p).attributes.carried = 7; },
                "step.ops[2].carried"},
        Mistake{"SiteTwice", [](Program& p) { Loop(p).attributes.site = "low"; },
                "step.ops[2].decision_site"},
        Mistake{"SiteWithoutName", [](Program& p) { Loop(p).attributes.site = ""; },
                "step.ops[2].decision_site"},
        Mistake{"TooFewRegions", [](Program& p) { Loop(p).regions.pop_back(); },
                "step.ops[2].regions"},
        Mistake{"MissingYield", [](Program& p) { Loop(p).regions[1].yields.clear(); },
                "step.ops[2].regions[1].yields"},
        Mistake{"ValueLeavesItsRegion",
                [](Program& p) { p.step.yields[0] = Loop(p).regions[1].ops[0].results[0]; },
                "step.yields[0]"},
        Mistake{"NoNextState", [](Program& p) { p.step.yields.clear(); }, "step.yields"},
        Mistake{"ExportTakesAStatesName",
                [](Program& p) {
                  p.exports.push_back({"x", p.step.yields[0], true});
                },
                "exports[0].name"},
        Mistake{"EmptyObjective", [](Program& p) { p.objectives[0].terminal = {}; },
                "objectives[0]"},
        Mistake{"ObjectiveTwice", [](Program& p) { p.objectives.push_back(p.objectives[0]); },
                "objectives[1]"},
        Mistake{"TerminalReadsTheStep",
                [](Program& p) { p.objectives[0].terminal.yields = {p.step.ops[0].results[0]}; },
                "objectives[0].terminal.yields"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Verify, RefusesLiteralsOutsideTheirType) {
  const auto is_taken = [](ElementType type, int64_t n) {
    Builder b("literal");
    const Var x = b.State("x", {}, "", type);
    b.SetNext({b.Apply(OpCode::kAdd, {x, b.Integer(n, type)})});
    return b.Finish().ok();
  };
  EXPECT_TRUE(is_taken(ElementType::kU32, UINT32_MAX));
  EXPECT_FALSE(is_taken(ElementType::kU32, int64_t{UINT32_MAX} + 1));
  EXPECT_FALSE(is_taken(ElementType::kU32, -1));
  EXPECT_TRUE(is_taken(ElementType::kU8, 255));
  EXPECT_FALSE(is_taken(ElementType::kU8, 256));
  EXPECT_FALSE(is_taken(ElementType::kU8, -1));
  EXPECT_FALSE(is_taken(ElementType::kI32, int64_t{1} << 31));
}

TEST(Verify, TakesBitsOfWholeNumbersOfOneTypeOnly) {
  const auto is_taken = [](OpCode code, ElementType a, ElementType b_type) {
    Builder b("bits");
    const Var x = b.State("x", {}, "", a);
    const Var y = b.State("y", {}, "", b_type);
    b.SetNext({b.Apply(code, {x, y}), y});
    return b.Finish().ok();
  };
  using enum ElementType;
  for (const OpCode code : {OpCode::kAnd, OpCode::kOr, OpCode::kXor, OpCode::kShl, OpCode::kShr}) {
    const bool shifts = code == OpCode::kShl || code == OpCode::kShr;
    for (const ElementType type : {kI32, kI64, kU32, kU8}) {
      EXPECT_TRUE(is_taken(code, type, type)) << InfoOf(code).name << ElementTypeName(type);
    }
    EXPECT_EQ(is_taken(code, kBool, kBool), !shifts) << InfoOf(code).name;
    EXPECT_FALSE(is_taken(code, kReal, kReal)) << InfoOf(code).name;
    EXPECT_FALSE(is_taken(code, kU32, kI32)) << InfoOf(code).name;
    EXPECT_FALSE(is_taken(code, kU32, kU8)) << InfoOf(code).name;
  }
}

TEST(Verify, RefusesASelectOnAnAnonymousComparisonOfReals) {
  Builder b("anonymous");
  const Var x = b.State("x", {});
  const Var positive = b.Apply(OpCode::kGt, {x, b.Literal(0.0)});
  b.SetNext({Select(Not(positive), x, -x)});
  const auto program = b.Finish();
  ASSERT_FALSE(program.ok());
  EXPECT_NE(std::string(program.status().message()).find("use an event"), std::string::npos);
}

TEST(Verify, FollowsAnAnonymousComparisonThroughConversionsAndLoops) {
  Builder converted("converted");
  const Var x = converted.State("x", {});
  const Var positive = converted.Apply(OpCode::kGt, {x, converted.Literal(0.0)});
  const Var one = converted.Convert(positive, ElementType::kI32);
  const Var again = converted.Apply(OpCode::kEq, {one, converted.Integer(1)});
  converted.SetNext({Select(again, x, -x)});
  EXPECT_FALSE(converted.Finish().ok());

  Builder carried("carried");
  const Var y = carried.State("y", {});
  const Var low = carried.Apply(OpCode::kLt, {y, carried.Literal(0.0)});
  const Vars loop = carried.For(2, {low, y}, [](Var, const Vars& args) {
    return Vars{args[0], Select(args[0], args[1], -args[1])};
  });
  carried.SetNext({loop[1]});
  EXPECT_FALSE(carried.Finish().ok());
}

TEST(Verify, AcceptsASelectOnAComparisonOfIntegers) {
  Builder b("counting");
  const Var x = b.State("x", {});
  const Var third = b.Apply(OpCode::kEq, {b.StepIndex(), b.Integer(3)});
  b.SetNext({Select(third, -x, x)});
  EXPECT_TRUE(b.Finish().ok());
}

TEST(Verify, RefusesAnOutsideValueInALoopPerElement) {
  Builder b("leak");
  const Var x = b.State("x", {4});
  const Var k = b.Param("k", {}, 0.5);
  WhileOptions options;
  options.site = "halve";
  options.elements = 4;
  const LoopResult loop = b.While(
      options, {x}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{carried[0], b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) { return Vars{k * carried[0]}; });
  b.SetNext({loop.carried[0]});
  const auto program = b.Finish();
  ASSERT_FALSE(program.ok());
  EXPECT_NE(std::string(program.status().message()).find("mapped operand"), std::string::npos);
}

// x' = 20 sines of x, `outer` times `inner` times.
absl::StatusOr<Program> ManySines(int64_t outer, int64_t inner) {
  Builder b("sines");
  const Var x = b.State("x", {1 << 18});
  const auto sines = [&](Var, const Vars& carried) {
    Var y = carried[0];
    for (int i = 0; i < 20; ++i) y = b.Apply(OpCode::kSin, {y});
    return Vars{y};
  };
  b.SetNext(
      b.For(outer, {x}, [&](Var, const Vars& carried) { return b.For(inner, carried, sines); }));
  return b.Finish();
}

TEST(Verify, LimitsTheWorkOfAStepBeyondTheCapOfEveryLoop) {
  // 20 * 2^18 * 800000 is just below 2^42.
  EXPECT_TRUE(ManySines(100, 8000).ok());
  const absl::Status more = ManySines(100, 8400).status();
  EXPECT_EQ(more.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(more), "step");
}

TEST(Verify, LargeBuiltInWorldsAtTheLargestCapAreWithinTheWorkOfAStep) {
  for (const char* scope : {"instance", "element"}) {
    const Config largest = {{"elements", double{1 << 18}},
                            {"max_iter", 100'000.0},
                            {"scope", std::string(scope)},
                            {"tol_enter", 1.0}};
    for (const char* world : {"bouncing_ball", "boundary_projection"}) {
      const auto built = BuildWorld(world, largest);
      EXPECT_TRUE(built.ok()) << world << ": " << built.status();
    }
  }
}

TEST(Verify, AcceptsEveryConfigurationOfTheBuiltInWorlds) {
  for (const char* contact : {"projection", "penalty", "toi"}) {
    for (const char* scope : {"instance", "element"}) {
      for (double elements : {1.0, 2.0, 257.0}) {
        const Config config = {{"contact", std::string(contact)},
                               {"scope", std::string(scope)},
                               {"elements", elements},
                               {"smoothing", std::string("softplus")},
                               {"integrator", std::string("explicit")},
                               {"tol_enter", 1.0}};
        EXPECT_TRUE(BuildWorld("bouncing_ball", config).ok());
      }
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
