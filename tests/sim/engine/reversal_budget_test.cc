// The memory that a reversal may use, of which checkpoints take what they are worth.
#include "sim/engine/reversal_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kSaved = int64_t{64} << 20;
constexpr int64_t kBudget = int64_t{8} << 30;

// Of steps that double `elements` numbers.
Work WorkOfSteps(int64_t steps, int64_t elements = 1) {
  Builder b("doubled");
  const Var x = b.State("x", {elements});
  b.SetNext({x + x});
  const precision::Policy policy = tests::PolicyOf({.preset = "f32"});
  Work work = tests::WorkOf(*Lower(*b.Finish(), policy, "", std::nullopt), 1, steps);
  work.memory_budget_bytes = kBudget;
  return work;
}

TEST(ReversalBudget, CheckpointsAreNoMoreThanTheyAreWorthWhereTheTapeIsNotKnown) {
  for (const int64_t steps : {1, 100, 1000}) {
    const Work work = WorkOfSteps(steps);
    const ReversalBudget unknown = ReversalBudgetOf(work, std::nullopt, kSaved);
    const ReversalBudget known = ReversalBudgetOf(work, MemoryNeed{.saved = kSaved}, kSaved);
    EXPECT_LE(unknown.checkpoints, known.checkpoints) << steps;
    EXPECT_LE(unknown.checkpoints, (steps + 1) * kSaved) << steps;
    EXPECT_LE(unknown.checkpoints, kBudget / 2) << steps;
    EXPECT_GE(unknown.checkpoints, kSaved) << steps;
    EXPECT_EQ(unknown.held, kBudget) << steps;
  }
  // A hundred steps with a checkpoint every 32, the last ones on the way.
  EXPECT_LT(ReversalBudgetOf(WorkOfSteps(100), std::nullopt, kSaved).checkpoints, 16 * kSaved);
}

TEST(ReversalBudget, CheckpointsLieAsCloseAsStepsAreReversedAtOnce) {
  const Work work = WorkOfSteps(1000);
  const auto interval_of = [](const Work& of, int64_t steps_at_once, int64_t saved) {
    return ReversalBudgetOf(of, MemoryNeed{.steps_at_once = steps_at_once}, saved).interval;
  };
  constexpr int64_t kLittle = 1 << 10;
  EXPECT_EQ(interval_of(work, 1, kLittle), 8);
  EXPECT_EQ(interval_of(work, 13, kLittle), 13);
  EXPECT_EQ(interval_of(work, 50, kLittle), 50);
  EXPECT_EQ(interval_of(work, 1000, kLittle), 128);
  EXPECT_EQ(interval_of(work, 0, kLittle), 32);
  EXPECT_EQ(ReversalBudgetOf(work, std::nullopt, kLittle).interval, 32);
  // One of a thousand steps in 8, 16 and 32 takes 32 MiB.
  EXPECT_EQ(interval_of(work, 1, 1 << 18), 8);
  EXPECT_EQ(interval_of(work, 1, 1 << 19), 16);
  EXPECT_EQ(interval_of(work, 1, 1 << 20), 32);
  EXPECT_EQ(interval_of(work, 1, 1 << 30), 32);
  EXPECT_EQ(interval_of(work, 50, 1 << 20), 50);
  EXPECT_EQ(interval_of(work, 50, 1 << 30), 50);
  // Or a part of what there is.
  Work poor = work;
  poor.memory_budget_bytes = int64_t{128} << 20;
  EXPECT_EQ(interval_of(poor, 1, 1 << 14), 8);
  EXPECT_EQ(interval_of(poor, 1, 1 << 16), 16);
  EXPECT_EQ(interval_of(poor, 1, 1 << 18), 32);
  // A step that is a chunk's work may have its own.
  const Work large = WorkOfSteps(1000, 1 << 20);
  EXPECT_EQ(interval_of(large, 1, kLittle), 1);
  EXPECT_EQ(interval_of(large, 3, kLittle), 3);
  EXPECT_EQ(interval_of(large, 1, 1 << 17), 4);
  // A range is no longer than a chunk.
  EXPECT_EQ(interval_of(large, 100, kLittle), 16);
  Work chunks = work;
  chunks.chunk_steps = 4;
  EXPECT_EQ(interval_of(chunks, 100, kLittle), 4);
  // Threads share the steps, not the copies.
  Work shared = WorkOfSteps(1000, 1 << 20);
  shared.batch.instances = shared.options.threads = 4;
  EXPECT_EQ(interval_of(shared, 100, kLittle), 16);
  EXPECT_EQ(interval_of(shared, 1, 1 << 17), 4);
  shared.batch.instances = 1;
  EXPECT_EQ(interval_of(shared, 1, 1 << 17), 4);
  EXPECT_EQ(interval_of(shared, 1, kLittle), 1);
  shared.options.record_states = {0};
  EXPECT_EQ(interval_of(shared, 1, kLittle), 8);
}

TEST(ReversalBudget, TheNeedIsThatOfTheRangesThatTheWorkWillHave) {
  Work work = WorkOfSteps(1000);
  const auto ranges_of = [&](int64_t steps_at_once) {
    std::vector<int64_t> asked;
    const auto need = NeedForItsRanges(work, [&](const RangeSteps& steps) {
      asked.push_back(steps.range);
      return std::optional(MemoryNeed{.tape_once = steps.range, .steps_at_once = steps_at_once});
    });
    EXPECT_EQ((*need)->tape_once, asked.back());
    return asked;
  };
  EXPECT_EQ(ranges_of(0), std::vector<int64_t>({32}));
  EXPECT_EQ(ranges_of(1), std::vector<int64_t>({32}));
  EXPECT_EQ(ranges_of(50), std::vector<int64_t>({32, 50}));
  EXPECT_EQ(ranges_of(1000), std::vector<int64_t>({32, 128}));
  work.checkpoint_interval = 7;
  EXPECT_EQ(ranges_of(1000), std::vector<int64_t>({7}));
  work.checkpoint_interval = 0;
  work.chunk_steps = 20;
  EXPECT_EQ(ranges_of(1000), std::vector<int64_t>({20}));
}

TEST(ReversalBudget, CheckpointsAreAllThatTheIntervalHasWhereTheyAreSmall) {
  const Work work = WorkOfSteps(10'000);
  const MemoryNeed need = {.steps_at_once = 1};
  const auto count = [&](int64_t saved) {
    return ReversalBudgetOf(work, need, saved).checkpoints / saved;
  };
  EXPECT_EQ(count(1), 1250 + 2);
  EXPECT_EQ(count(1 << 14), 1250 + 2);
  EXPECT_EQ(count(1 << 17), 200 + 2);
  const Work large = WorkOfSteps(10'000, 1 << 20);
  EXPECT_EQ(ReversalBudgetOf(large, need, 1).checkpoints, 10'000 + 1);
}

}  // namespace
}  // namespace simgrad::sim
