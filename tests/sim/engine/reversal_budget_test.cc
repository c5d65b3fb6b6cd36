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

}  // namespace
}  // namespace simgrad::sim
