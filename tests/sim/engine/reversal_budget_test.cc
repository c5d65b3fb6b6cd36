// The memory that a reversal may use, of which checkpoints take what they are worth.
#include "sim/engine/reversal_budget.h"

#include <gtest/gtest.h>

namespace simgrad::sim {
namespace {

constexpr int64_t kSaved = int64_t{64} << 20;
constexpr int64_t kBudget = int64_t{8} << 30;

Work WorkOfSteps(int64_t steps) {
  Work work;
  work.batch.steps = steps;
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
  const auto interval_of = [&](int64_t steps_at_once, int64_t saved) {
    return ReversalBudgetOf(work, MemoryNeed{.steps_at_once = steps_at_once}, saved).interval;
  };
  constexpr int64_t kLittle = 1 << 10;
  EXPECT_EQ(interval_of(1, kLittle), 8);
  EXPECT_EQ(interval_of(13, kLittle), 13);
  EXPECT_EQ(interval_of(1000, kLittle), 32);
  EXPECT_EQ(interval_of(0, kLittle), 32);
  EXPECT_EQ(ReversalBudgetOf(work, std::nullopt, kLittle).interval, 32);
  // 125 of them are small up to 32 MiB, or a part of what there is.
  EXPECT_EQ(interval_of(1, 1 << 18), 8);
  EXPECT_EQ(interval_of(1, 1 << 19), 32);
  Work poor = work;
  poor.memory_budget_bytes = int64_t{128} << 20;
  const MemoryNeed need = {.steps_at_once = 1};
  EXPECT_EQ(ReversalBudgetOf(poor, need, 1 << 14).interval, 8);
  EXPECT_EQ(ReversalBudgetOf(poor, need, 1 << 18).interval, 32);
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
}

}  // namespace
}  // namespace simgrad::sim
