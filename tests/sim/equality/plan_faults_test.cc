// The comparison of executors finds faults in what they share: the plan.
#include "tests/sim/equality/plan_faults.h"

#include <iostream>
#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/plan/make_plan.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = 300;

// A case, what the reference gives for it, and its plan with everything recorded.
struct Answered {
  Case made;
  Observed expected;
  plan::Plan plan;
};

class PlanFaultsTest : public ::testing::Test {
 protected:
  const Answered& At(uint64_t seed) {
    const auto known = answered_.find(seed);
    if (known != answered_.end()) return known->second;
    absl::StatusOr<Case> made = MakeCase(seed);
    EXPECT_TRUE(made.ok()) << made.status();
    absl::StatusOr<Observed> expected = Observe(reference_, made->work);
    EXPECT_TRUE(expected.ok()) << expected.status();
    plan::Plan plan = plan::PlacedPlan(*made->work.batch.program,
                                       {.decides = true, .looks = true, .ranges = true});
    return answered_
        .emplace(seed, Answered{std::move(*made), std::move(*expected), std::move(plan)})
        .first->second;
  }

  // The first case in which the fault shows, 0 if in none; prints how.
  uint64_t CaughtAt(const PlanFault& fault) {
    int planted = 0;
    for (uint64_t seed = 1; seed <= kCases; ++seed) {
      const Answered& answered = At(seed);
      // Most cases give most faults no occasion, and need no code.
      plan::Plan whole = answered.plan;
      if (!fault.plant(whole)) continue;
      bool has_occasion = false;
      compiled::KernelOptions options;
      options.effort = compiled::Effort::kQuick;
      options.mapping = compiled::Mapping::kLanes;
      options.edit = [&](plan::Plan& plan) { has_occasion = fault.plant(plan); };
      const absl::StatusOr<Observed> actual =
          Observe(compiled::MakeCompiledExecutor(options), answered.made.work);
      planted += has_occasion ? 1 : 0;
      if (!has_occasion || !actual.ok()) continue;
      const std::optional<std::string> difference = FirstDifference(answered.expected, *actual);
      if (!difference) continue;
      std::cout << fault.name << ": case " << seed << ", planted " << planted << " times, "
                << *difference << "\n";
      return seed;
    }
    return 0;
  }

  std::shared_ptr<Executor> reference_ = MakeReferenceExecutor();
  std::map<uint64_t, Answered> answered_;
};

TEST_F(PlanFaultsTest, EachIsCaught) {
  // Sanitizers look at memory, which a fifth of the faults shows them.
  int place = 0;
  for (const PlanFault& fault : PlanFaults()) {
    if (kSanitized && place++ % 5 != 0) continue;
    EXPECT_NE(CaughtAt(fault), 0u) << fault.name << " was not seen in " << kCases << " cases";
  }
}

}  // namespace
}  // namespace simgrad::sim::equality
