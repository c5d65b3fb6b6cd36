// Formats and casts: small programs and their text.
#include "sim/program/assign.h"

#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/loop.h"
#include "sim/program/print.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim {
namespace {

// State and dynamics in the formats given, all else in f32.
precision::Policy In(const std::string& state, const std::string& dynamics,
                     Overflow overflow = Overflow::kIeee) {
  precision::PolicySpec spec;
  spec.preset = "f32";
  precision::RoleOverride of_state, of_dynamics;
  of_state.format = precision::FormatFromName(state);
  of_state.overflow = overflow;
  of_dynamics.format = precision::FormatFromName(dynamics);
  spec.roles = {{"state", of_state}, {"dynamics", of_dynamics}};
  return std::get<precision::Policy>(precision::Resolve(spec));
}

// The text of the step.
std::string Assigned(const Program& program, const precision::Policy& policy) {
  NumericalProgram numerical;
  numerical.program = program;
  numerical.policy = policy;
  PassBudget budget;
  const std::string text = Print(AssignPrecision(numerical, budget).program);
  return text.substr(text.find("step:\n"));
}

TEST(AssignPrecision, AnOperationComputesInTheFormatOfItsRole) {
  Builder b("roles");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  EXPECT_EQ(Assigned(b.program(), In("f32", "bf16")),
            "step:\n"
            "  %1:bf16[] = cast %0  # dynamics x\n"
            "  %2:bf16[] = sin %1  # dynamics\n"
            "  %3:f32[] = cast %2  # state\n"
            "  yield %3\n");
}

TEST(AssignPrecision, CastsIntoARoleRoundAsItSaysUnlessTheyAreExact) {
  Builder b("roles");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  precision::Policy policy = In("bf16", "f32");
  for (Role role : {Role::kState, Role::kDynamics}) {
    policy.roles[static_cast<size_t>(role)].rounding = CastRounding::kTowardZero;
  }
  EXPECT_EQ(Assigned(b.program(), policy),
            "step:\n"
            "  %1:f32[] = cast %0  # dynamics x\n"
            "  %2:f32[] = sin %1  # dynamics\n"
            "  %3:bf16[] = cast %2 toward_zero  # state\n"
            "  yield %3\n");
}

TEST(AssignPrecision, WhatHasTheFormatAlreadyIsNotCast) {
  Builder b("same");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  EXPECT_EQ(Assigned(b.program(), In("f32", "f32")),
            "step:\n"
            "  %1:f32[] = sin %0  # dynamics\n"
            "  yield %1\n");
}

TEST(AssignPrecision, OneCastServesEveryReaderOfItsRegion) {
  Builder b("shared");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x}) * x});
  EXPECT_EQ(Assigned(b.program(), In("f32", "bf16")),
            "step:\n"
            "  %1:bf16[] = cast %0  # dynamics x\n"
            "  %2:bf16[] = sin %1  # dynamics\n"
            "  %3:bf16[] = mul %2, %1  # dynamics\n"
            "  %4:f32[] = cast %3  # state\n"
            "  yield %4\n");
}

TEST(AssignPrecision, ALiteralIsRoundedFromItsExactNumberAndStandsAtTheTop) {
  Builder b("literals");
  const Var x = b.State("x", {});
  const Var y = x * x;
  b.SetNext({y * b.Literal(0.1)});
  EXPECT_EQ(Assigned(b.program(), In("bf16", "bf16")),
            "step:\n"
            "  %1:bf16[] = mul %0, %0  # dynamics\n"
            "  %2:bf16[] = literal 0x1.9ap-4  # dynamics\n"
            "  %3:bf16[] = mul %1, %2  # dynamics\n"
            "  yield %3\n");
}

TEST(AssignPrecision, ALoopDoesNotRepeatTheCastOfAnInput) {
  Builder b("outside");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  b.SetNext(b.For(3, {x}, [&](Var, const Vars& carried) { return Vars{k * carried[0]}; }));
  const std::string text = Assigned(b.program(), In("f32", "f32"));
  EXPECT_EQ(text.find("  %2:f32[] = cast %1  # dynamics k\n"), sizeof("step:\n") - 1) << text;
  EXPECT_EQ(text.find("cast", text.find("for")), std::string::npos) << text;
}

TEST(AssignPrecision, AValueOfTheLoopIsCastInTheLoop) {
  Builder b("inside");
  const Var x = b.State("x", {});
  b.SetNext(b.For(3, {x}, [&](Var, const Vars& carried) {
    RoleScope role(b, Role::kEvent);
    b.Event("low", carried[0], Comparison::kLt, b.Literal(0.0));
    return carried;
  }));
  const std::string text = Assigned(b.program(), In("bf16", "bf16"));
  EXPECT_NE(
      text.find("    body (%3:i32[], %4:bf16[]):\n      %5:f32[] = cast %4  # event @low x\n"),
      std::string::npos)
      << text;
}

TEST(AssignPrecision, ASaturatingStateIsClampedThoughItHasItsFormat) {
  Builder b("clamped");
  const Var x = b.State("x", {});
  b.SetNext({b.Apply(OpCode::kSin, {x})});
  EXPECT_EQ(Assigned(b.program(), In("f32", "f32", Overflow::kSaturate)),
            "step:\n"
            "  %1:f32[] = sin %0  # dynamics\n"
            "  %2:f32[] = cast %1 saturate  # state\n"
            "  yield %2\n");
}

// The line of the one matmul of a world and its policy, without its number.
std::string MatmulUnder(const precision::Policy& policy) {
  Builder b("product");
  const Var a = b.State("a", {2, 3});
  const Var turned = b.Do(OpCode::kTranspose, {a}, {.dims = {1, 0}});
  const Var product = b.Do(OpCode::kMatmul, {a, turned});
  b.SetNext({b.Broadcast(b.Reduce(OpCode::kSum, product), {2, 3}, {})});
  const std::string text = Assigned(b.program(), policy);
  const size_t begin = text.find("matmul");
  return text.substr(begin, text.find("  #", begin) - begin);
}

TEST(AssignPrecision, MatmulReadsAndAddsAsItsRoleSays) {
  precision::Policy policy = In("f32", "f32");
  precision::RoleSetting& dynamics = policy.roles[static_cast<size_t>(Role::kDynamics)];
  dynamics.order = Order::kReversed;
  EXPECT_EQ(MatmulUnder(policy), "matmul %0, %1 accumulator=f32");
  dynamics.products.order = precision::SumOrder(Order::kShuffled, 7);
  EXPECT_EQ(MatmulUnder(policy), "matmul %0, %1 products=shuffled(7) accumulator=f32");
  dynamics.products.order = Order::kPairwise;
  dynamics.inputs = CastRounding::kNearestEven;
  EXPECT_EQ(MatmulUnder(policy),
            "matmul %0, %1 inputs=tf32 nearest_even products=pairwise accumulator=f32");
  policy.roles[static_cast<size_t>(Role::kSolver)] = dynamics;
  dynamics.products.order.reset();
  dynamics.inputs = CastRounding::kTowardZero;
  EXPECT_EQ(MatmulUnder(policy), "matmul %0, %1 inputs=tf32 toward_zero accumulator=f32");
}

TEST(AssignPrecision, OfASiteThatThePolicyNamesIsThatOfTheSite) {
  precision::PolicySpec spec;
  spec.preset = "f32";
  precision::RoleOverride exact;
  exact.format = Format::kF64;
  spec.sites = {{"low", exact}};
  Builder b("sites");
  const Var x = b.State("x", {});
  b.Event("low", x, Comparison::kLt, b.Literal(0.1));
  b.SetNext({x});
  const std::string text =
      Assigned(b.program(), std::get<precision::Policy>(precision::Resolve(spec)));
  EXPECT_NE(text.find("f64[] = literal 0x1.999999999999ap-4"), std::string::npos) << text;
  EXPECT_NE(text.find("f64[] = cast %0  # event @low"), std::string::npos) << text;
}

precision::Policy Fp8() {
  precision::PolicySpec spec;
  spec.preset = "fp8_storage";
  return std::get<precision::Policy>(precision::Resolve(spec));
}

TEST(AssignPrecision, ARoleWithAScaleRoundsWhatEntersAndWhatMatmulReads) {
  Builder b("network");
  const Var x = b.State("x", {2});
  const Var w = b.Param("w", {2, 2}, 0.0);
  {
    RoleScope role(b, Role::kNetwork);
    const Var row = b.Do(OpCode::kReshape, {x}, {.shape = {1, 2}});
    const Var first = b.Apply(OpCode::kTanh, {b.Do(OpCode::kMatmul, {row, w})});
    const Var second = b.Do(OpCode::kMatmul, {first, w});
    b.SetNext({b.Do(OpCode::kReshape, {second + second}, {.shape = {2}})});
  }
  // A reshape rounds nothing, tanh and add read what the role computed as it is.
  EXPECT_EQ(Assigned(b.program(), Fp8()),
            "step:\n"
            "  %2:f32[1,2] = reshape %0  # network\n"
            "  %3:f32[1,2] = fake_quantize %2 axes=[0,1] format=e4m3  # network\n"
            "  %4:f64[2,2] = fake_quantize %1 axes=[0,1] format=e4m3  # network w\n"
            "  %5:f32[2,2] = cast %4 saturate  # network w\n"
            "  %6:f32[1,2] = matmul %3, %5 accumulator=f32  # network\n"
            "  %7:f32[1,2] = tanh %6  # network\n"
            "  %8:f32[1,2] = fake_quantize %7 axes=[0,1] format=e4m3  # network\n"
            "  %9:f32[1,2] = matmul %8, %5 accumulator=f32  # network\n"
            "  %10:f32[1,2] = add %9, %9  # network\n"
            "  %11:f32[2] = reshape %10  # network\n"
            "  yield %11\n");
}

TEST(AssignPrecision, ALiteralOfARoleWithAScaleIsRoundedUnderItsOwn) {
  Builder b("literals");
  const Var x = b.State("x", {2});
  RoleScope role(b, Role::kNetwork);
  // 1000 and 1.1 under 2^2: 250 is nearest to 256, 0.275 to 0.28125. Infinities stay.
  const Var least = b.LiteralArray({1000.0, 1.1}, {2});
  const Var most = b.Literal(std::numeric_limits<double>::infinity());
  b.SetNext({b.Apply(OpCode::kMin, {x * least, b.Broadcast(most, {2}, {})})});
  const std::string text = Assigned(b.program(), Fp8());
  EXPECT_NE(text.find(":f32[2] = literal 0x1p+10 0x1.2p+0  # network"), std::string::npos) << text;
  EXPECT_NE(text.find("literal inf  # network"), std::string::npos) << text;
}

TEST(AssignPrecision, ACastIntoARoleWithAScaleIsUnderIt) {
  Builder b("cast");
  const Var x = b.State("x", {2});
  RoleScope role(b, Role::kNetwork);
  b.SetNext({b.Apply(OpCode::kTanh, {b.Cast(x)})});
  EXPECT_EQ(Assigned(b.program(), Fp8()),
            "step:\n"
            "  %1:f32[2] = fake_quantize %0 axes=[0] format=e4m3  # network x\n"
            "  %2:f32[2] = cast %1 saturate  # network\n"
            "  %3:f32[2] = tanh %2  # network\n"
            "  yield %3\n");
}

TEST(AssignPrecision, ACastOfWhatARoleWithAScaleComputedIsComputedToo) {
  Builder b("cast");
  const Var x = b.State("x", {2});
  RoleScope role(b, Role::kNetwork);
  const Var y = b.Reshape(b.Cast(b.Apply(OpCode::kTanh, {x})), {2, 1});
  b.SetNext({b.Reshape(y + y, {2})});
  const std::string text = Assigned(b.program(), Fp8());
  const size_t first = text.find("fake_quantize %0");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("fake_quantize", first + 1), std::string::npos) << text;
}

TEST(AssignPrecision, WhatARoleWithAScaleComputesInTheTestOfALoopIsReadAsItIs) {
  Builder b("loop");
  const Var x = b.State("x", {2});
  RoleScope role(b, Role::kNetwork);
  const Var y = b.Apply(OpCode::kTanh, {x});
  const auto of_instance = b.While(
      {.site = "all", .max_iter = 3}, {y}, {},
      [&](const Vars& c, const Vars&) {
        RoleScope inside(b, Role::kNetwork);
        const Var z = b.Apply(OpCode::kSin, {c[0]});
        return LoopTest{b.Reduce(OpCode::kReduceMax, z), b.Literal(1.0), std::nullopt, {z}};
      },
      [&](const Vars& c, const Vars& exports, const Vars&) { return Vars{c[0] * exports[0]}; });
  const auto of_elements = b.While(
      {.site = "each", .max_iter = 3, .elements = 2}, {y}, {of_instance.exports[0]},
      [&](const Vars& c, const Vars&) {
        return LoopTest{c[0], b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& c, const Vars&, const Vars& mapped) { return Vars{c[0] * mapped[0]}; });
  b.SetNext({of_elements.carried[0] + of_instance.exports[0]});
  const std::string text = Assigned(b.program(), Fp8());
  const size_t first = text.find("fake_quantize %0");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("fake_quantize", first + 1), std::string::npos) << text;
}

// Counts casts of cotangents that enter or leave a region, or a loop in reverse, of the region that
// they are made in, and those of them that are executed where the cotangent may be absent.
class SlotCasts {
 public:
  int64_t counted = 0;
  int64_t everywhere = 0;

  // The yields of `region`, of an adjoint, are slots, and its arguments from `first` on.
  void Count(const Program& program, const Region& region, size_t first) {
    std::vector<const Op*> made(program.values.size());
    std::vector<ValueId> mask_of(program.values.size(), ValueId::kNone);
    if (first <= region.args.size()) Note(std::span(region.args).subspan(first), mask_of);
    for (const Op& op : region.ops) {
      const bool reverses = op.code == OpCode::kWhileVjp || op.code == OpCode::kForVjp;
      if (reverses) Check(op.operands, made);
      // A cast of what arrives in a slot.
      if (op.code == OpCode::kCast && mask_of[Index(op.operands[0])] != ValueId::kNone) Add(op);
      for (ValueId id : op.results) {
        if (id != ValueId::kNone) made[Index(id)] = &op;
      }
      if (!reverses) continue;
      Note(op.results, mask_of);
      for (const Region& nested : op.regions) {
        Count(program, nested, op.code == OpCode::kForVjp ? 1 : 0);
      }
    }
    Check(region.yields, made);
  }

 private:
  void Add(const Op& cast) {
    ++counted;
    everywhere += cast.attributes.where == ValueId::kNone;
  }

  static void Note(std::span<const ValueId> ids, std::vector<ValueId>& mask_of) {
    const SlotList slots = SlotList::Of(ids);
    for (size_t k = 0; k < slots.size(); ++k) {
      if (slots.cotangents[k] != ValueId::kNone)
        mask_of[Index(slots.cotangents[k])] = slots.masks[k];
    }
  }

  void Check(std::span<const ValueId> ids, const std::vector<const Op*>& made) {
    const SlotList slots = SlotList::Of(ids);
    for (size_t k = 0; k < slots.size(); ++k) {
      if (slots.cotangents[k] == ValueId::kNone || slots.masks[k] == ValueId::kNone) continue;
      const Op* op = made[Index(slots.cotangents[k])];
      if (op != nullptr && op->code == OpCode::kCast) Add(*op);
    }
  }
};

// An absent cotangent is whatever its operation left. Rounded, it might count as beyond its format.
TEST(AssignPrecision, ACotangentIsCastWhereItIsPresent) {
  SlotCasts casts;
  for (uint64_t seed = 1; seed <= (kSanitized ? 100 : 400); ++seed) {
    SCOPED_TRACE(seed);
    const auto made = equality::MakeCase(seed);
    if (!made.ok() || !made->work.batch.program->adjoint) continue;
    const NumericalProgram& numerical = *made->work.batch.program;
    casts.Count(numerical.program, numerical.adjoint->inner,
                numerical.stage_cost == ValueId::kNone ? 0 : 1);
  }
  EXPECT_GT(casts.counted, kSanitized ? 0 : 50);
  EXPECT_EQ(casts.everywhere, 0);
}

}  // namespace
}  // namespace simgrad::sim
