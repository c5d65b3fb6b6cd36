// The comparison of executors finds what it is there to find.
#include "tests/sim/equality/planted_faults.h"

#include <iostream>
#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = 300;

// A case and what the reference gives for it, made once for all faults.
struct Answered {
  Case made;
  Observed expected;
};

class PlantedFaultsTest : public ::testing::Test {
 protected:
  const Answered& At(uint64_t seed) {
    const auto known = answered_.find(seed);
    if (known != answered_.end()) return known->second;
    absl::StatusOr<Case> made = MakeCase(seed);
    EXPECT_TRUE(made.ok()) << made.status();
    absl::StatusOr<Observed> expected = Observe(reference_, made->work);
    EXPECT_TRUE(expected.ok()) << expected.status();
    return answered_.emplace(seed, Answered{std::move(*made), std::move(*expected)}).first->second;
  }

  // The first case in which the fault shows, 0 if in none; prints how.
  uint64_t CaughtAt(const PlantedFault& fault) {
    int planted = 0;
    for (uint64_t seed = 1; seed <= kCases; ++seed) {
      const Answered& answered = At(seed);
      const auto faulty = fault.plant(reference_, answered.made.work.batch);
      if (faulty == nullptr) continue;
      ++planted;
      const absl::StatusOr<Observed> actual = Observe(faulty, answered.made.work);
      if (!actual.ok()) continue;
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

TEST_F(PlantedFaultsTest, EveryPlantedFaultIsCaught) {
  // Sanitizers look at memory, which a fifth of the faults shows them.
  int place = 0;
  for (const PlantedFault& fault : PlantedFaults()) {
    if (kSanitized && place++ % 5 != 0) continue;
    EXPECT_NE(CaughtAt(fault), 0u) << fault.name << " was not seen in " << kCases << " cases";
  }
}

}  // namespace
}  // namespace simgrad::sim::equality
