// What lowering costs, in counts: nothing that a client can send makes it more than linear in what
// it writes, it is refused before it grows large, and it ends when it is told to.
#include <gtest/gtest.h>

#include <string>

#include "sim/op/expansion.h"
#include "sim/program/activity.h"
#include "sim/program/assign.h"
#include "sim/program/builder.h"
#include "sim/program/decision_margin.h"
#include "sim/program/detect.h"
#include "sim/program/differentiate.h"
#include "sim/program/draws.h"
#include "sim/program/field_error.h"
#include "sim/program/halts.h"
#include "sim/program/infinities.h"
#include "sim/program/loop_choice.h"
#include "sim/program/lower.h"
#include "sim/program/name_tests.h"
#include "sim/program/objective.h"
#include "sim/program/own_vjp.h"
#include "sim/program/paths.h"
#include "sim/program/print.h"
#include "sim/program/renumber.h"
#include "sim/program/simplify.h"
#include "sim/program/verify.h"
#include "tests/sanitized.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

const precision::Policy kBf16 = tests::PolicyOf({.preset = "bf16_safe"});

absl::StatusOr<NumericalProgram> Gradient(const Program& world, PassBudget& budget) {
  return Lower(world, kBf16, "cost", shaped::WantedOf(world, "cost"), &budget);
}

struct Cost {
  int64_t visits = 0;
  int64_t searched = 0;
  int64_t operations = 0;
  int64_t bytes = 0;
};

Cost CostOf(const Program& world) {
  PassBudget budget;
  const auto lowered = Gradient(world, budget);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return {budget.visits(), budget.searched(), budget.operations(), budget.bytes()};
}

// Eight times the size costs about eight times as much.
void ExpectLinear(Program (*make)(int), int size) {
  const Cost small = CostOf(make(size));
  const Cost large = CostOf(make(8 * size));
  EXPECT_LE(large.visits, 10 * small.visits);
  EXPECT_LE(large.searched, 10 * small.searched);
  EXPECT_LE(large.operations, 9 * small.operations);
  EXPECT_LE(large.bytes, 10 * small.bytes);
}

TEST(LoweringCost, IsLinearInCarriedValuesThatMoveOn) {
  ExpectLinear(shaped::ShiftedFor, 250);
  ExpectLinear(shaped::ShiftedWhile, 250);
}

TEST(LoweringCost, IsLinearInStatesThatMoveOn) { ExpectLinear(shaped::ShiftedStates, 250); }

TEST(LoweringCost, IsLinearInExports) { ExpectLinear(shaped::Exports, 500); }

TEST(LoweringCost, IsLinearInOperandsOfOneConcat) { ExpectLinear(shaped::WideConcat, 2'000); }

// Every operand of such a call reaches every result.
TEST(LoweringCost, IsLinearInOperandsAndResultsOfOneCall) {
  ASSERT_TRUE(Verify(shaped::WideCall(250)).ok()) << Verify(shaped::WideCall(250));
  ASSERT_TRUE(Verify(shaped::WideIntegerCall(250)).ok()) << Verify(shaped::WideIntegerCall(250));
  ExpectLinear(shaped::WideCall, 250);
  ExpectLinear(shaped::WideIntegerCall, 250);
}

NumericalProgram Chosen(const Program& world) {
  PassBudget unlimited;
  NumericalProgram chosen =
      ChooseObjective(NameTests(NumberDraws(world, unlimited), {}, unlimited), "cost", unlimited);
  chosen.policy = kBf16;
  return chosen;
}

TEST(LoweringCost, OfAPathIsLinearInDecisionsOfOneName) {
  const auto visits = [](int tests) {
    PassBudget budget;
    const NumericalProgram recorded = RecordPath(Chosen(shaped::FiniteTests(tests)), budget);
    const std::vector<PathColumn>& columns = recorded.path->columns;
    EXPECT_EQ(columns.size(), static_cast<size_t>(tests));
    EXPECT_EQ(columns.front().site, "is_finite");
    EXPECT_EQ(columns.back().site, "is_finite#" + std::to_string(tests - 1));
    return budget.visits();
  };
  EXPECT_LE(visits(2'000), 10 * visits(250));
}

TEST(LoweringCost, IsLinearInCastsCapturesAndReadsOfAnObjective) {
  ExpectLinear(shaped::Casts, 250);
  ExpectLinear(shaped::Captures, 250);
  ExpectLinear(
      [](int reads) {
        Program world = shaped::ObjectiveReads(reads);
        world.objectives.front().name = "cost";
        return world;
      },
      250);
}

TEST(LoweringCost, FitsTwentyThousandValuesThatMoveOn) {
  EXPECT_LE(CostOf(shaped::ShiftedFor(19'000)).bytes, LoweredLimits().max_bytes);
}

TEST(LoweringCost, FitsTwentyThousandOperationsOfFiveEach) {
  for (const OpCode code : {OpCode::kSin, OpCode::kSoftplus, OpCode::kDiv, OpCode::kMax}) {
    if (kSanitized && code != OpCode::kDiv) continue;
    EXPECT_LE(CostOf(shaped::Chain(code, 19'000)).bytes, LoweredLimits().max_bytes);
  }
}

// Every region is written once: one more operation in each of the tests is written for each way in
// which that test is reversed, and never for a round of a fixpoint.
TEST(LoweringCost, WritesEachRegionOnce) {
  const Cost one = CostOf(shaped::NestedTests(5, 1));
  const Cost two = CostOf(shaped::NestedTests(5, 2));
  const Cost three = CostOf(shaped::NestedTests(5, 3));
  EXPECT_EQ(three.operations - two.operations, two.operations - one.operations);
}

TEST(LoweringCost, OfTestsInTestsIsRefusedBeforeItIsWritten) {
  for (const int inner : {10, 30, 100, 1'000}) {
    const Program world = shaped::NestedTests(8, inner);
    ASSERT_TRUE(Verify(world).ok());
    PassBudget budget;
    const absl::Status status = Gradient(world, budget).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << inner;
    EXPECT_TRUE(IsLimit(status)) << status;
    EXPECT_EQ(FieldOf(status), "program");
    const LoweredLimits limits;
    EXPECT_LE(budget.searched(), limits.max_visits + 10'000);
    EXPECT_LE(budget.bytes(), limits.max_bytes + 10'000);
    EXPECT_LE(budget.operations(), limits.max_operations + 1);
    EXPECT_LE(budget.visits(), 16'000'000);
  }
}

TEST(LoweringCost, EveryLimitEndsIt) {
  const Program world = shaped::Chain(OpCode::kSin, 500);
  LoweredLimits limits;
  const auto refusal = [&](const LoweredLimits& changed) {
    PassBudget budget({}, changed);
    return Gradient(world, budget).status();
  };
  EXPECT_TRUE(refusal(limits).ok());
  limits.max_operations = 900;
  EXPECT_TRUE(IsLimit(refusal(limits))) << refusal(limits);
  limits = {};
  limits.max_operands = 900;
  EXPECT_TRUE(IsLimit(refusal(limits))) << refusal(limits);
  limits = {};
  limits.max_bytes = 300'000;
  EXPECT_TRUE(IsLimit(refusal(limits))) << refusal(limits);
  limits = {};
  limits.max_text_bytes = 10'000;
  EXPECT_TRUE(IsLimit(refusal(limits))) << refusal(limits);
  limits = {};
  limits.max_visits = 1'000;
  EXPECT_TRUE(IsLimit(refusal(limits))) << refusal(limits);
}

// A stop callback that fires at any poll ends lowering there.
TEST(LoweringCost, EndsAtWhicheverPollSaysSo) {
  const Program world = shaped::ShiftedWhile(700);
  PassBudget whole;
  ASSERT_TRUE(Gradient(world, whole).ok());
  ASSERT_GT(whole.polls(), 20);
  for (int64_t last = 1; last <= whole.polls(); ++last) {
    int64_t asked = 0;
    PassBudget budget([&] { return ++asked == last; });
    const absl::Status status = Gradient(world, budget).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << last;
    EXPECT_EQ(asked, last);
  }
}

// No stretch is longer than a poll's distance and one operation's lists.
void ExpectPolled(const std::string& pass, const PassBudget& budget, int64_t least) {
  EXPECT_GE(budget.visits(), least) << pass;
  EXPECT_GE(budget.polls(), budget.visits() / (2 * PassBudget::kBetweenPolls)) << pass;
  EXPECT_LE(budget.longest_stretch(), PassBudget::kBetweenPolls + 2 * 2'001) << pass;
}

TEST(LoweringCost, EveryPassPolls) {
  const Program world = shaped::Chain(OpCode::kSin, 8'000);
  const AdjointSpec spec = shaped::WantedOf(world, "cost");
  const auto polled = [&](const std::string& pass, const auto& run, int64_t least = 8'000) {
    PassBudget budget;
    run(budget);
    ExpectPolled(pass, budget, least);
    bool stopped = false;
    try {
      PassBudget stopping([] { return true; });
      run(stopping);
    } catch (const PassBudget::Ended& ended) {
      stopped = ended.status.code() == absl::StatusCode::kCancelled;
    }
    EXPECT_TRUE(stopped) << pass;
  };
  const NumericalProgram lowered = *Lower(world, kBf16, "cost", spec);
  // Passes that have something to do in some programs alone look at each operation of any.
  polled("composites", [&](PassBudget& budget) { ExpandComposites(world, budget); });
  polled("draws", [&](PassBudget& budget) { NumberDraws(world, budget); });
  Program leveled = world;
  leveled.level = TestLevel::kAll;
  polled("tests", [&](PassBudget& budget) { NameTests(leveled, {}, budget); });
  polled("deciding tests", [&](PassBudget& budget) {
    DecidingTestsOf(leveled, SitesOf(leveled), &budget);
    BehindPlaces(leveled, &budget);
  });
  polled("halts", [&](PassBudget& budget) { HaltNames(world, &budget); });
  const Program halting = shaped::HaltingChain(8'000);
  polled(
      "halts expanded", [&](PassBudget& budget) { ExpandHalts(halting, std::nullopt, budget); },
      20'000);
  const Program finite = shaped::FiniteTests(4'000);
  const NumericalProgram deciding = Chosen(finite);
  polled(
      "path recorded", [&](PassBudget& budget) { RecordPath(deciding, budget); }, 32'000);
  polled(
      "path forced", [&](PassBudget& budget) { ForcePath(deciding, budget); }, 32'000);
  polled(
      "structure", [&](PassBudget& budget) { StructureOf(finite, budget); }, 4'000);
  polled("loop choices",
         [&](PassBudget& budget) { MarkChoices(world, {{.site = "no such loop"}}, budget); });
  polled("own vjps", [&](PassBudget& budget) { RemoveOwnVjps(lowered, budget); });
  polled("sites", [&](PassBudget& budget) { SitesOf(world, &budget); });
  polled("simplify", [&](PassBudget& budget) { Simplify(world, {}, budget); });
  polled("activity", [&](PassBudget& budget) { ActiveValues(world, nullptr, spec, budget); });
  PassBudget unlimited;
  NumericalProgram chosen = ChooseObjective(world, "cost", unlimited);
  chosen.policy = kBf16;
  polled("choose", [&](PassBudget& budget) { ChooseObjective(world, "cost", budget); });
  polled("bring", [&](PassBudget& budget) { BringIntoObjective(chosen, budget); });
  polled("differentiate", [&](PassBudget& budget) { Differentiate(chosen, spec, budget); });
  polled("assign", [&](PassBudget& budget) { AssignPrecision(chosen, budget); });
  polled("unread", [&](PassBudget& budget) { RemoveUnread(lowered, budget); });
  polled("used inputs", [&](PassBudget& budget) { MarkUsedInputs(lowered, budget); });
  polled("renumber", [&](PassBudget& budget) { Renumber(lowered, budget); });
  polled("casts", [&](PassBudget& budget) { NumberCasts(lowered, budget); });
  polled("infinities", [&](PassBudget& budget) { MarkInfinities(lowered, budget); });
  polled("print", [&](PassBudget& budget) { Print(lowered, &budget); });
  polled(
      "fingerprint", [&](PassBudget& budget) { Fingerprint(lowered.text, &budget); },
      static_cast<int64_t>(lowered.text.size()) / 64);
  polled("detect", [&](PassBudget& budget) {
    const Region& region = lowered.adjoint->inner;
    DetectNonFinite(lowered, region, region.yields, &budget);
  });
}

TEST(LoweringCost, VerifyPollsAndEnds) {
  const Program world = shaped::ShiftedWhile(2'000);
  PassBudget budget;
  ASSERT_TRUE(Verify(world, {}, &budget).ok());
  ExpectPolled("verify", budget, 8'000);
  PassBudget stopping([] { return true; });
  EXPECT_EQ(Verify(world, {}, &stopping).code(), absl::StatusCode::kCancelled);
}

// Detection looked at loops whose values move on once per value, and at nested ones in powers of
// it.
TEST(LoweringCost, DetectionIsLinearInCarriedValues) {
  const auto visits = [](int carried) {
    PassBudget whole;
    const NumericalProgram lowered = *Gradient(shaped::NestedShifts(6, carried), whole);
    PassBudget budget;
    const Region& region = lowered.program.step;
    DetectNonFinite(lowered, region, region.yields, &budget);
    return budget.visits();
  };
  EXPECT_LE(visits(800), 10 * visits(100));
}

struct LimitCase {
  std::string name;
  ProgramLimits limits;
  std::string field;
};

TEST(LoweringCost, VerifyRefusesWhatHoldsTooMuch) {
  Builder b("world");
  const Var x = b.State("x", {2});
  b.Label("a label");
  const Var y = x + b.LiteralArray({1.0, 2.0}, {2});
  b.Export("first", y);
  b.Export("second", y);
  b.SetNext({y});
  const auto cost = [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  };
  b.AddObjective("one", nullptr, cost);
  b.AddObjective("two", nullptr, cost);
  const Program world = *b.Finish();
  std::vector<LimitCase> cases(6);
  cases[0] = {"exports", {}, "exports"};
  cases[0].limits.max_exports = 1;
  cases[1] = {"objectives", {}, "objectives"};
  cases[1].limits.max_objectives = 1;
  cases[2] = {"operands", {}, "step.ops[1].operands"};
  cases[2].limits.max_operands = 1;
  cases[3] = {"all operands", {}, "step.ops[1].operands"};
  cases[3].limits.max_total_operands = 2;
  cases[4] = {"literals", {}, "step.ops[0].literal"};
  cases[4].limits.max_literal_elements = 1;
  cases[5] = {"names", {}, "values[5].name"};
  cases[5].limits.max_name_bytes = 16;
  for (const LimitCase& refused : cases) {
    const absl::Status status = Verify(world, refused.limits);
    EXPECT_TRUE(IsLimit(status)) << refused.name << ": " << status;
    EXPECT_EQ(FieldOf(status), refused.field) << refused.name << ": " << status;
  }
}

TEST(LoweringCost, AxesThatNothingReadsAreBounded) {
  Program world = shaped::Chain(OpCode::kSin, 1);
  world.step.ops[0].attributes.start.assign(9, 0);
  EXPECT_TRUE(IsLimit(Verify(world))) << Verify(world);
}

}  // namespace
}  // namespace simgrad::sim
