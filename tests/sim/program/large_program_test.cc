// What lowering the gradient of a large program costs and leaves behind, in counts for each
// operation read: 5,000 and 45,000 operations, a tenth of them in loops in loops.
#include "tests/sim/program/large_program.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "sim/op/expansion.h"
#include "sim/program/activity.h"
#include "sim/program/assign.h"
#include "sim/program/decision_margin.h"
#include "sim/program/detect.h"
#include "sim/program/differentiate.h"
#include "sim/program/draws.h"
#include "sim/program/halts.h"
#include "sim/program/held_bytes.h"
#include "sim/program/infinities.h"
#include "sim/program/loop_choice.h"
#include "sim/program/lower.h"
#include "sim/program/name_tests.h"
#include "sim/program/objective.h"
#include "sim/program/own_vjp.h"
#include "sim/program/paths.h"
#include "sim/program/print.h"
#include "sim/program/record_margins.h"
#include "sim/program/renumber.h"
#include "sim/program/simplify.h"
#include "sim/program/verify.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/large_coverage.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

const precision::Policy kBf16 = tests::PolicyOf({.preset = "bf16_safe"});

constexpr int64_t kSizes[] = {5'000, kSanitized ? 15'000 : 45'000};

// Counts for each operation of the world.
struct Shares {
  double operations = 0;  // written
  double values = 0;      // written
  double operands = 0;    // written
  double bytes = 0;       // written
  double text = 0;        // bytes of it
  double visits = 0;
  double searched = 0;
  double kept = 0;  // bytes that the lowered program holds in a cache
};

Shares SharesOf(const Program& world) {
  PassBudget budget;
  const auto lowered = Lower(world, kBf16, "cost", shaped::WantedOf(world, "cost"), &budget);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  if (!lowered.ok()) return {};
  const auto read = static_cast<double>(large::OperationsOf(world));
  const auto share = [&](int64_t count) { return static_cast<double>(count) / read; };
  return {share(budget.operations()), share(budget.values()),     share(budget.operands()),
          share(budget.bytes()),      share(budget.text_bytes()), share(budget.visits()),
          share(budget.searched()),   share(HeldBytes(*lowered))};
}

TEST(LargeProgram, IsAsLargeAsItIsAskedToBeAndHasLoopsThreeDeep) {
  for (const int64_t size : kSizes) {
    const Program world = large::LargeProgram(size);
    EXPECT_TRUE(Verify(world).ok()) << Verify(world);
    EXPECT_LE(large::OperationsOf(world), size);
    EXPECT_GE(large::OperationsOf(world), size - 200);
    const equality::Extent extent = equality::ExtentOf(*Lower(world, kBf16, "", std::nullopt));
    EXPECT_EQ(extent.depth, 3);
    EXPECT_EQ(extent.elements, 729);
    EXPECT_GE(extent.loops, size / 70);
  }
}

// Measured: 5.4 operations, 5.5 values, 13.2 operands, 2,800 bytes, 350 bytes of text, 151 visits,
// 6.3 visits of searches, 2,960 bytes kept. Behind a choice a cotangent may be absent, which it is
// not where the objective sends it: the adjoint of the last step is not that of the others, and
// every operation needs one or two in each.
TEST(LargeProgram, WritesAFewOperationsForEachOneReadAndKeepsThreeKilobytes) {
  for (const int64_t size : kSizes) {
    const Shares shares = SharesOf(large::LargeProgram(size));
    EXPECT_LE(shares.operations, 6.5) << size;
    EXPECT_LE(shares.values, 6.5) << size;
    EXPECT_LE(shares.operands, 16) << size;
    EXPECT_LE(shares.bytes, 3'400) << size;
    EXPECT_LE(shares.text, 420) << size;
    EXPECT_LE(shares.visits, 180) << size;
    EXPECT_LE(shares.searched, 8) << size;
    EXPECT_LE(shares.kept, 3'600) << size;
  }
}

// Measured: 3.3 operations, 3.4 values, 7.9 operands, 1,720 bytes, 108 visits, 1,930 bytes kept: two
// fifths less where one adjoint is that of every step. The text says it twice all the same.
TEST(LargeProgram, WritesTheReversedStepOnceWhereEveryCotangentIsPresent) {
  if (kSanitized) GTEST_SKIP() << "counts are those of every build";
  for (const int64_t size : {kSizes[0], ProgramLimits().max_operations}) {
    const Program world = large::LargeProgram(size, large::Step::kAdvances);
    const auto lowered = Lower(world, kBf16, "cost", shaped::WantedOf(world, "cost"));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    EXPECT_FALSE(lowered->adjoint->last.has_value());
    const Shares shares = SharesOf(world);
    EXPECT_LE(shares.operations, 4) << size;
    EXPECT_LE(shares.values, 4) << size;
    EXPECT_LE(shares.operands, 9.5) << size;
    EXPECT_LE(shares.bytes, 2'100) << size;
    EXPECT_GE(shares.text, 300) << size;
    EXPECT_LE(shares.visits, 130) << size;
    EXPECT_LE(shares.kept, 2'300) << size;
  }
}

// Nine times the operations cost nine times as much, give or take a twentieth.
TEST(LargeProgram, CostsAsMuchForEachOperationWhateverItsSize) {
  if (kSanitized) GTEST_SKIP() << "counts are those of every build";
  const Shares small = SharesOf(large::LargeProgram(kSizes[0]));
  const Shares big = SharesOf(large::LargeProgram(kSizes[1]));
  EXPECT_NEAR(big.operations / small.operations, 1, 0.05);
  EXPECT_NEAR(big.values / small.values, 1, 0.05);
  EXPECT_NEAR(big.operands / small.operands, 1, 0.05);
  EXPECT_NEAR(big.bytes / small.bytes, 1, 0.05);
  EXPECT_NEAR(big.visits / small.visits, 1, 0.05);
  EXPECT_NEAR(big.searched / small.searched, 1, 0.05);
  EXPECT_NEAR(big.kept / small.kept, 1, 0.05);
}

struct Pass {
  std::string name;
  double most = 0;  // visits for each operation of the world
  std::function<void(PassBudget&)> run;
};

// Measured: 4.4 verify, 1.0 sites, 6.3 simplify, 4.6 activity, 13.6 detect (of the adjoint, which
// is larger), 8.5 print, 5.8 fingerprint; 1.0 composites, 13.1 tests, 1.7 choose, 11.9 path, 1.9
// bring, 46.8 differentiate, 3.9 assign, 5.0 own vjps, 21.2 unread, 5.0 casts, 12.4 used inputs,
// 22.2 renumber, 5.0 infinities (the later ones of the adjoint too); 1.0 draws, 0.9 halts and their
// expansion, 1.0 loop choices, 4.3 deciding tests, 24.2 path forced, 1.0 margins recorded, 2.5
// forward fingerprint.
TEST(LargeProgram, EveryPassVisitsAnOperationAFewTimes) {
  if (kSanitized) GTEST_SKIP() << "counts are those of every build";
  for (const int64_t size : kSizes) {
    const Program world = large::LargeProgram(size);
    const AdjointSpec spec = shaped::WantedOf(world, "cost");
    const NumericalProgram lowered = *Lower(world, kBf16, "cost", spec);
    const Region& adjoint = lowered.adjoint->inner;
    Program leveled = world;
    leveled.level = TestLevel::kAll;
    PassBudget unlimited;
    NumericalProgram chosen =
        ChooseObjective(ExpandComposites(world, unlimited), "cost", unlimited);
    chosen.policy = kBf16;
    const NumericalProgram forward = *Lower(world, kBf16, "cost", std::nullopt);
    const ProgramText text = PrintParts(lowered);
    const std::vector<Pass> passes = {
        {"verify", 6, [&](PassBudget& b) { EXPECT_TRUE(Verify(world, {}, &b).ok()); }},
        {"sites", 2, [&](PassBudget& b) { SitesOf(world, &b); }},
        {"simplify", 8, [&](PassBudget& b) { Simplify(world, {}, b); }},
        {"activity", 6, [&](PassBudget& b) { ActiveValues(world, nullptr, spec, b); }},
        {"detect", 17,
         [&](PassBudget& b) { DetectNonFinite(lowered, adjoint, adjoint.yields, &b); }},
        {"composites", 2, [&](PassBudget& b) { ExpandComposites(world, b); }},
        {"tests", 16, [&](PassBudget& b) { NameTests(leveled, {}, b); }},
        {"choose", 3, [&](PassBudget& b) { ChooseObjective(world, "cost", b); }},
        {"path", 15, [&](PassBudget& b) { RecordPath(chosen, b); }},
        {"bring", 3, [&](PassBudget& b) { BringIntoObjective(chosen, b); }},
        {"differentiate", 56, [&](PassBudget& b) { Differentiate(chosen, spec, b); }},
        {"assign", 6, [&](PassBudget& b) { AssignPrecision(chosen, b); }},
        {"own vjps", 7, [&](PassBudget& b) { RemoveOwnVjps(lowered, b); }},
        {"unread", 26, [&](PassBudget& b) { RemoveUnread(lowered, b); }},
        {"casts", 7, [&](PassBudget& b) { NumberCasts(lowered, b); }},
        {"used inputs", 16, [&](PassBudget& b) { MarkUsedInputs(lowered, b); }},
        {"renumber", 27, [&](PassBudget& b) { Renumber(lowered, b); }},
        {"infinities", 7, [&](PassBudget& b) { MarkInfinities(lowered, b); }},
        {"draws", 2, [&](PassBudget& b) { NumberDraws(world, b); }},
        {"halts", 2, [&](PassBudget& b) { HaltNames(world, &b); }},
        {"halts expanded", 4, [&](PassBudget& b) { ExpandHalts(world, std::nullopt, b); }},
        {"loop choices", 4,
         [&](PassBudget& b) { MarkChoices(world, {{.site = "no such loop"}}, b); }},
        {"deciding tests", 9,
         [&](PassBudget& b) { DecidingTestsOf(leveled, SitesOf(leveled), &b); }},
        {"path forced", 29, [&](PassBudget& b) { ForcePath(chosen, b); }},
        {"margins recorded", 6, [&](PassBudget& b) { RecordMargins(forward, {}, b); }},
        {"forward fingerprint", 4, [&](PassBudget& b) { ForwardFingerprint(text, &b); }},
        {"print", 11, [&](PassBudget& b) { Print(lowered, &b); }},
        {"fingerprint", 8, [&](PassBudget& b) { Fingerprint(lowered.text, &b); }}};
    for (const Pass& pass : passes) {
      PassBudget budget;
      pass.run(budget);
      const double share =
          static_cast<double>(budget.visits()) / static_cast<double>(large::OperationsOf(world));
      EXPECT_LE(share, pass.most) << pass.name << ", " << size;
      RecordProperty(pass.name + std::to_string(size), std::to_string(share));
      EXPECT_GE(share, 0.5) << pass.name << ", " << size;
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
