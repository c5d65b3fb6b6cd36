// Facts of a lowered program that every executor reads.

#include "sim/program/numerical_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sim/program/builder.h"
#include "sim/program/detect.h"
#include "sim/program/loop.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

// Three objectives, of which `end` alone has a terminal cost; two loops around an event; an input
// that only the terminal cost reads, and one that nothing reads.
Program World() {
  Builder b("facts");
  const Var x = b.State("x", {2});
  const Var n = b.State("n", {}, "", ElementType::kI32);
  const Var a = b.Param("a", {}, 1.0);
  const Var goal = b.Param("goal", {}, 1.0);
  b.Param("nothing", {}, 1.0);
  const auto loop = [&](const std::string& site, Var from, const std::string& event) {
    WhileOptions options;
    options.site = site;
    options.max_iter = 4;
    return b
        .While(
            options, {from}, {},
            [&](const Vars& carried, const Vars&) {
              const Var norm = b.Reduce(OpCode::kSum, carried[0]);
              return LoopTest{norm, b.Literal(1.0), std::nullopt, {}};
            },
            [&](const Vars& carried, const Vars&, const Vars&) {
              const Var low = b.Event(event, carried[0], Comparison::kLt, b.Literal(2.0, {2}));
              return Vars{Select(low, a * carried[0], carried[0])};
            })
        .carried[0];
  };
  const Var first = loop("first_loop", x, "first_event");
  const Var second = loop("second_loop", first, "second_event");
  b.SetNext({second / x, n});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, goal * states[0]);
  });
  b.AddObjective(
      "along", [&] { return b.Reduce(OpCode::kSum, x); }, nullptr);
  b.AddObjective(
      "bare", [&] { return a; }, nullptr);
  const absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

NumericalProgram Lowered(const std::string& objective) {
  auto lowered = tests::LowerForGradient(World(), tests::PolicyOf({.preset = "f32"}), objective);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

bool Reads(const NumericalProgram& program, const std::string& name) {
  const int32_t input = tests::IndexOf(program.program, InputKind::kParam, name);
  return ReadInputs(program)[static_cast<size_t>(input)];
}

TEST(NumericalProgram, HasTheTerminalCostOfTheChosenObjectiveOnly) {
  EXPECT_EQ(TerminalOf(Lowered("")), nullptr);
  EXPECT_EQ(TerminalOf(Lowered("along")), nullptr);
  const NumericalProgram end = Lowered("end");
  EXPECT_EQ(TerminalOf(end), &end.program.objectives.front().terminal);
}

TEST(NumericalProgram, ReadsAnInputWhereARegionThatRunsDoes) {
  EXPECT_TRUE(Reads(Lowered("end"), "goal"));
  EXPECT_FALSE(Reads(Lowered("along"), "goal"));
  for (const std::string objective : {"", "end", "along"}) {
    EXPECT_TRUE(Reads(Lowered(objective), "a")) << objective;
    EXPECT_FALSE(Reads(Lowered(objective), "nothing")) << objective;
  }
}

TEST(NumericalProgram, AnOverflowModeOfItsOwnComesBeforeThatOfRoleAndSite) {
  precision::Policy policy = tests::PolicyOf({.preset = "f32"});
  Op op;
  op.code = OpCode::kCast;
  op.role = Role::kTape;
  for (const Overflow mode : {Overflow::kIeee, Overflow::kSaturate}) {
    policy.roles[static_cast<size_t>(Role::kTape)].overflow = mode;
    op.attributes.overflow.reset();
    EXPECT_EQ(OverflowInForce(policy, op), mode);
    for (const Overflow own : {Overflow::kIeee, Overflow::kSaturate}) {
      op.attributes.overflow = own;
      EXPECT_EQ(OverflowInForce(policy, op), own);
    }
  }
}

TEST(NumericalProgram, NumbersSitesAmongThoseOfTheirKind) {
  const NumericalProgram program = Lowered("");
  std::vector<std::pair<std::string, int32_t>> numbers;
  for (const Site& site : program.sites) numbers.emplace_back(site.name, site.number);
  const std::vector<std::pair<std::string, int32_t>> expected = {
      {"first_loop", 0}, {"first_event", 0}, {"second_loop", 1}, {"second_event", 1}};
  EXPECT_EQ(numbers, expected);
  EXPECT_EQ(CountOf(program.sites, SiteKind::kTermination), 2u);
  EXPECT_EQ(CountOf(program.sites, SiteKind::kEvent), 2u);
  EXPECT_EQ(RealStates(program.program), 1u);
}

TEST(NumericalProgram, ATestYieldsItsExportsAfterBothSidesAndTheEntryThreshold) {
  for (const bool enters : {false, true}) {
    Builder b("exports");
    const Var x = b.State("x", {});
    Var exported;
    WhileOptions options;
    options.site = "loop";
    b.While(
        options, {x}, {},
        [&](const Vars& carried, const Vars&) {
          exported = carried[0] * carried[0];
          LoopTest test{carried[0], b.Literal(1.0), std::nullopt, {exported}};
          if (enters) test.entry = b.Literal(2.0);
          return test;
        },
        [&](const Vars& carried, const Vars&, const Vars&) { return carried; });
    const Op& loop = b.program().step.ops.back();
    ASSERT_EQ(loop.code, OpCode::kWhile);
    EXPECT_EQ(FirstExport(loop), enters ? 3u : 2u);
    EXPECT_EQ(loop.regions[0].yields[FirstExport(loop)], exported.id);
  }
}

size_t Count(const std::vector<bool>& looks) {
  return static_cast<size_t>(std::count(looks.begin(), looks.end(), true));
}

// z[t+1] = k z[t], and where the cost is asked of: the end, every step, or both.
NumericalProgram Decay(bool stage, bool terminal) {
  Builder b("decay");
  const Var x = b.State("x", {});
  b.SetNext({b.Param("k", {}, 0.5) * x});
  const auto at_end = [](const Vars& states, const Vars&) { return states[0]; };
  b.AddObjective("cost", stage ? std::function([&] { return x; }) : nullptr,
                 terminal ? std::function<Var(const Vars&, const Vars&)>(at_end) : nullptr);
  auto lowered = tests::LowerForGradient(*b.Finish(), tests::PolicyOf({.preset = "f64"}), "cost");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

TEST(Adjoint, TheLastStepSharesTheRegionOfTheOthersWhereItIsEnteredAsTheyAre) {
  for (const bool stage : {false, true}) {
    const NumericalProgram shared = Decay(stage, true);
    EXPECT_FALSE(shared.adjoint->last.has_value());
    EXPECT_EQ(&shared.adjoint->Last(), &shared.adjoint->inner);
    EXPECT_EQ(RegionsOf(*shared.adjoint).size(), 3u);
  }
}

TEST(Adjoint, TheLastStepHasARegionOfItsOwnWhereNothingEntersIt) {
  const NumericalProgram own = Decay(true, false);
  ASSERT_TRUE(own.adjoint->last.has_value());
  EXPECT_EQ(own.adjoint->last->args[1], ValueId::kNone);
  EXPECT_NE(own.adjoint->inner.args[1], ValueId::kNone);
  EXPECT_EQ(RegionsOf(*own.adjoint).size(), 4u);
}

TEST(Adjoint, TheTextSaysASharedRegionTwiceWithNumbersOfItsOwn) {
  const std::string text = Decay(false, true).text;
  EXPECT_NE(text.find("adjoint last (%5:f64[], _, _, _):\n  %6:f64[] = mul %5, %1"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("adjoint step (%9:f64[], _, _, _):\n  %10:f64[] = mul %9, %1"),
            std::string::npos)
      << text;
}

TEST(LooksOf, AreThoseOfTheRegionsThatRun) {
  const NumericalProgram end = Lowered("end");
  const Region& step = end.program.step;
  const Region& terminal = *TerminalOf(end);
  const std::vector<bool> in_step = DetectNonFinite(end, step, step.yields).look;
  const std::vector<bool> in_terminal = DetectNonFinite(end, terminal, terminal.yields).look;
  const std::vector<bool> forward = LooksOf(end, LooksIn::kForward).look;
  EXPECT_GT(Count(in_step), 0u);
  for (size_t i = 0; i < forward.size(); ++i) EXPECT_EQ(forward[i], in_step[i] || in_terminal[i]);

  const std::vector<bool> all = LooksOf(end, LooksIn::kAll).look;
  EXPECT_GT(Count(all), Count(forward));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_GE(all[i], forward[i]);
}

TEST(LooksOf, TheStageCostIsLookedAtByTheExecutor) {
  // The cast of a param in f64 can overflow.
  const NumericalProgram bare = Lowered("bare");
  ASSERT_NE(bare.stage_cost, ValueId::kNone);
  EXPECT_FALSE(LooksOf(bare, LooksIn::kForward).look[Index(bare.stage_cost)]);
  const Region& step = bare.program.step;
  EXPECT_TRUE(DetectNonFinite(bare, step, step.yields).look[Index(bare.stage_cost)]);
}

}  // namespace
}  // namespace simgrad::sim
