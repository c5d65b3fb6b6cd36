// What fusing and placing leave of small plans and of generated ones of 5,000 and 20,000 operations.
#include "sim/plan/fuse.h"

#include "gtest/gtest.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/place.h"
#include "sim/plan/print.h"
#include "sim/plan/statement_walk.h"
#include "sim/program/builder.h"
#include "sim/program/lower.h"
#include "tests/sanitized.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::plan {
namespace {

Plan MadePlan(Builder& builder, Records records = {}) {
  const Program world = *builder.Finish();
  precision::PolicySpec spec;
  spec.preset = "f32";
  return MakePlan(*Lower(world, tests::PolicyOf(spec), "", std::nullopt), records);
}

struct Sizes {
  int64_t statements = 0;
  int64_t nests = 0;
  int64_t locals = 0;  // of several elements
  int64_t workspace = 0;
  bool operator==(const Sizes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << "{" << s.statements << ", " << s.nests << ", " << s.locals << ", " << s.workspace
             << "}";
}

Sizes SizesOf(const Function& function) {
  Sizes sizes;
  EachStatement(function.statements, [&](const Statement& s) {
    ++sizes.statements;
    sizes.nests += s.code == Code::kEach;
    if (s.code == Code::kDeclare) {
      sizes.locals += function.buffers[static_cast<size_t>(s.buffer)].count > 1;
    }
  });
  sizes.workspace = function.workspace;
  return sizes;
}

TEST(Fuse, AChainOfElementwiseOperationsIsOneLoopWithoutLocals) {
  Builder b("chain");
  const Var x = b.State("x", {12});
  const Var y = b.State("y", {12});
  b.SetNext({x * y + x, y});
  EXPECT_EQ(Print(Fuse(MadePlan(b)).step),
            "step\n"
            "  local3: f32[12]\n"
            "  each %0 < 12\n"
            "    %1: f32 = field0.x[%0]\n"
            "    %2: f32 = field1.y[%0]\n"
            "    %3: f32 = mul_f32(%1, %2)\n"
            "    %7: f32 = add_f32(%3, %1)\n"
            "    local3[%0] = %7\n"
            "  commit\n"
            "    each %8 < 12\n"
            "      %9: f32 = local3[%8]\n"
            "      field0.x[%8] = %9\n");
}

// The product of a column and a row has a loop for each; what reads it runs over all its elements.
TEST(Fuse, WhatReadsAnOuterProductJoinsItsLoops) {
  Builder b("outer");
  const Var x = b.State("x", {3, 1});
  const Var y = b.State("y", {1, 4});
  const Var z = b.State("z", {3, 4});
  b.SetNext({x, y, b.Do(OpCode::kMatmul, {x, y}) + z});
  const Plan plan = Fuse(MadePlan(b));
  const std::string text = Print(plan.step);
  const Sizes sizes = SizesOf(plan.step);
  // Two loops for the next z, and those of the commit; the product is in no local.
  EXPECT_EQ(text.find("matmul"), std::string::npos) << text;
  EXPECT_EQ(sizes.locals, 1) << text;
}

// What is the same in every step is said of whole nests (invariants.h), split ones too.
TEST(Fuse, OnlyWholeNestsAreInvariant) {
  Builder b("outer_of_params");
  const Var x = b.State("x", {6, 5});
  const Var left = b.Param("left", {6, 1});
  const Var right = b.Param("right", {1, 5});
  const Var product = b.Do(OpCode::kMatmul, {left, right});
  b.SetNext({product * product + x});
  const Program world = *b.Finish();
  const auto lowered = Lower(world, tests::PolicyOf({}), "", std::nullopt);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const Plan plan = PlacedPlan(*lowered, {});
  int64_t invariant = 0;
  for (const Statement& whole : plan.step.statements) {
    invariant += whole.invariant ? 1 : 0;
    EachStatement(whole.body, [&](const Statement& inside) { EXPECT_FALSE(inside.invariant); });
  }
  EXPECT_GT(invariant, 0);
}

TEST(Fuse, AStencilKeepsItsLoopsApart) {
  Builder b("stencil");
  const Var x = b.State("x", {12});
  const Var twice = x + x;
  const Var left = b.Slice(twice, {0}, {6});
  const Var right = b.Slice(twice, {6}, {6});
  b.SetNext({b.Concat({left * right, right}, 0)});
  const std::string text = Print(Fuse(MadePlan(b)).step);
  // What reads elements that other turns of the first loop write stays behind it.
  EXPECT_NE(text.find("    local1[%0] = %3\n"
                      "  each %4 < 6\n"
                      "    %5: f32 = local1[%4]\n"
                      "    %6: f32 = local1[%4 + 6]\n"),
            std::string::npos)
      << text;
}

TEST(Fuse, LoopsJoinAcrossWhatDependsOnNeither) {
  Builder b("across");
  const Var x = b.State("x", {12});
  const Var y = b.State("y", {});
  const Var sum = b.Reduce(OpCode::kSum, x);
  const Var scaled = x * b.Broadcast(y, {12}, {});
  const Var shifted = x + b.Broadcast(sum, {12}, {});
  b.SetNext({scaled * shifted, sum * y});
  const Plan plan = Fuse(MadePlan(b));
  // scaled, shifted and their product; and the copy to the field.
  EXPECT_EQ(SizesOf(plan.step), (Sizes{37, 2, 1, 0})) << Print(plan.step);
}

// Both tables begin at their number 0.
TEST(Fuse, ATableOfIndicesIsNotOneOfNumbers) {
  Builder b("tables");
  const Var x = b.State("x", {4});
  const Var numbers = b.Literal(0.5, {4});
  b.program().step.ops.back().attributes.literal = {0.5, 0.25, 2.0, 3.0};
  const Var scaled = x * numbers;
  b.SetNext({scaled + b.Do(OpCode::kTake, {x}, {.start = {2, 3, 1, 0}, .shape = {4}})});
  const std::string text = Print(Fuse(MadePlan(b)).step);
  EXPECT_NE(text.find(": i64 = table0["), std::string::npos) << text;
  EXPECT_NE(text.find(": f32 = table0["), std::string::npos) << text;
}

// Element k reads what turn k + 1 of the other loop reads before it is overwritten.
TEST(Fuse, ALoopThatOverwritesWhatAnotherTurnReadsStaysApart) {
  const auto fused = [](int64_t shift) {
    Plan plan;
    Function& f = plan.step;
    f.name = "step";
    for (int32_t field : {0, 1}) {
      f.AddBuffer({.kind = BufferKind::kField, .count = 8, .number = field, .name = "x"});
    }
    for (const auto& [from, to, base] : {std::tuple{0, 1, shift}, std::tuple{1, 0, int64_t{0}}}) {
      const Register counter = f.AddRegister(Carrier::kI64);
      const Register x = f.AddRegister(Carrier::kF32);
      const Index at = {0, {{counter, 1}}};
      Statement each = {.code = Code::kEach, .result = counter, .number = 4, .parallel = true};
      each.body = {{.code = Code::kLoad, .result = x, .buffer = from, .index = {base, at.terms}},
                   {.code = Code::kStore, .operands = {x}, .buffer = to, .index = at}};
      f.statements.push_back(std::move(each));
    }
    return SizesOf(Fuse(plan).step).nests;
  };
  EXPECT_EQ(fused(0), 1);
  EXPECT_EQ(fused(1), 2);
}

TEST(Fuse, WhatATurnStoresIsNotWhatTheNextTurnsFirstReadGives) {
  Plan plan;
  Function& f = plan.step;
  f.name = "step";
  const BufferId field = f.AddBuffer({.kind = BufferKind::kField, .name = "x"});
  const Register one = f.AddRegister(Carrier::kF32);
  const Register counter = f.AddRegister(Carrier::kI64);
  const Register before = f.AddRegister(Carrier::kF32);
  const Register again = f.AddRegister(Carrier::kF32);
  const Register unused = f.AddRegister(Carrier::kF32);
  f.statements = {
      {.code = Code::kConstant, .result = one, .number = 1},
      {.code = Code::kStore, .operands = {one}, .buffer = field},
      {.code = Code::kEach,
       .result = counter,
       .number = 3,
       .body = {{.code = Code::kLoad, .result = before, .buffer = field},
                {.code = Code::kLoad, .result = again, .buffer = field},
                {.code = Code::kCall, .result = unused, .operands = {again}, .function = "neg_f32"},
                {.code = Code::kStore, .operands = {again}, .buffer = field}}}};
  EXPECT_EQ(Print(Fuse(plan).step),
            "step\n"
            "  %0: f32 = 1\n"
            "  field0.x[0] = %0\n"
            "  each %1 < 3 in order\n"
            "    %2: f32 = field0.x[0]\n"
            "    field0.x[0] = %2\n");
}

TEST(Place, LocalsThatLiveOneAfterAnotherShareTheirBytes) {
  Builder b("lives");
  const Var x = b.State("x", {8});
  Var y = x;
  for (int k = 0; k < 5; ++k) {
    const Var left = b.Slice(y, {0}, {4});
    const Var right = b.Slice(y, {4}, {4});
    y = b.Concat({right, left}, 0);
  }
  b.SetNext({y});
  const Plan plan = Place(Fuse(MadePlan(b)));
  // Five locals of 32 bytes, of which three live at a time.
  EXPECT_EQ(SizesOf(plan.step), (Sizes{31, 7, 5, 96})) << Print(plan.step);
}

// A local of an outer block that a loop reads lives as long as the loop runs.
TEST(Place, ALoopKeepsWhatItReadsInEveryTurn) {
  Plan plan;
  Function& f = plan.step;
  f.name = "step";
  std::vector<BufferId> locals;
  for (int k = 0; k < 3; ++k) locals.push_back(f.AddBuffer({.count = 4}));
  const Register x = f.AddRegister(Carrier::kF32);
  const Register counter = f.AddRegister(Carrier::kI64);
  const Register y = f.AddRegister(Carrier::kF32);
  const auto declare = [&](int k) {
    return Statement{.code = Code::kDeclare, .buffer = locals[k]};
  };
  const auto store = [&](int k, Register r) {
    return Statement{.code = Code::kStore, .operands = {r}, .buffer = locals[k]};
  };
  f.statements = {
      {.code = Code::kConstant, .result = x, .number = 1},
      declare(0),
      declare(2),
      store(0, x),
      {.code = Code::kEach,
       .result = counter,
       .number = 3,
       .body = {{.code = Code::kLoad, .result = y, .buffer = locals[0]}, declare(1), store(1, y)}},
      store(2, x)};
  const Function placed = Place(plan).step;
  EXPECT_NE(placed.buffers[0].offset, placed.buffers[1].offset);
  EXPECT_EQ(placed.buffers[2].offset, 0);  // behind the loop
  EXPECT_EQ(placed.workspace, 32);
}

// Locals of blocks that are done give their places to the next blocks.
TEST(Place, AGeneratedProgramTakesKilobytesPerLaneWhateverItsLength) {
  struct Expected {
    int64_t operations;
    Sizes step, replay, reverse;
  };
  for (const Expected& expected :
       {Expected{
            5'000, {8281, 732, 506, 6336}, {11831, 843, 504, 6336}, {27568, 1039, 1790, 29200}},
        Expected{20'000,
                 {33651, 2968, 2054, 6336},
                 {48123, 3423, 2052, 6336},
                 {112192, 4221, 7294, 29200}}}) {
    if (kSanitized && expected.operations > 5'000) continue;  // counts are those of every build
    const Program world = large::LargeProgram(expected.operations);
    precision::PolicySpec spec;
    spec.preset = "f32";
    const auto lowered =
        Lower(world, tests::PolicyOf(spec), "cost", shaped::WantedOf(world, "cost"));
    ASSERT_TRUE(lowered.ok());
    const Plan plan = PlacedPlan(*lowered, {});
    EXPECT_EQ(SizesOf(plan.step), expected.step);
    EXPECT_EQ(SizesOf(plan.replay), expected.replay);
    EXPECT_EQ(SizesOf(plan.reverse), expected.reverse);
    // Fusion leaves less than half of the loops.
    EXPECT_LT(2 * SizesOf(plan.step).nests, SizesOf(MakePlan(*lowered, {}).step).nests);
  }
}

}  // namespace
}  // namespace simgrad::sim::plan
