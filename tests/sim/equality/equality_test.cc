// Executors give the same bits on random programs, policies and inputs.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#ifdef SIMGRAD_TEST_CPU
#include "sim/backend/cpu/cpu_executor.h"
#endif
#include "sim/program/print.h"
#include "tests/sim/equality/coverage.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = 1200;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Seeds {
  uint64_t first = 1;
  uint64_t count = kCases;
};

// SIMGRAD_SEED=n runs case n alone, SIMGRAD_LONG=1 twenty times as many.
Seeds ChosenSeeds() {
  if (const uint64_t one = FromEnvironment("SIMGRAD_SEED", 0); one != 0) return {one, 1};
  return {1, kCases * (FromEnvironment("SIMGRAD_LONG", 0) != 0 ? 20 : 1)};
}

std::string Story(const Case& made) {
  const Work& work = made.work;
  std::string text = "seed " + std::to_string(made.seed) + " (SIMGRAD_SEED), instances " +
                     std::to_string(work.batch.instances) + ", steps " +
                     std::to_string(work.batch.steps) + ", gradient " +
                     std::to_string(work.gradient.has_value()) + "\n";
  return text + work.batch.program->text;
}

// Runs every chosen case on `other`, cut otherwise, and compares with the reference.
void ExpectEqualToReference(std::shared_ptr<Executor> other, Coverage& coverage) {
  const std::shared_ptr<Executor> reference = MakeReferenceExecutor();
  const Seeds seeds = ChosenSeeds();
  int failures = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count && failures < 3; ++seed) {
    const absl::StatusOr<Case> made = MakeCase(seed);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    const absl::StatusOr<Observed> expected = Observe(reference, made->work);
    ASSERT_TRUE(expected.ok()) << expected.status() << "\n" << Story(*made);
    const absl::StatusOr<Observed> actual = Observe(other, Recut(made->work, seed));
    ASSERT_TRUE(actual.ok()) << actual.status() << "\n" << Story(*made);
    coverage.Add(*made, *expected);
    const std::optional<std::string> difference = FirstDifference(*expected, *actual);
    if (!difference) continue;
    ++failures;
    ADD_FAILURE() << "reference against " << other->name() << ", " << *difference << "\n"
                  << Story(*made);
  }
}

TEST(ReferenceTest, NoBitDependsOnChunksOrCheckpoints) {
  Coverage coverage;
  ExpectEqualToReference(MakeReferenceExecutor(), coverage);
  std::cout << coverage.Table();
  if (coverage.cases < static_cast<int>(kCases)) GTEST_SKIP() << "one case says nothing of coverage";
  for (const std::string& row : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << row;
}

#ifdef SIMGRAD_TEST_CPU
TEST(CpuTest, EveryBitIsThatOfTheReference) {
  Coverage coverage;
  ExpectEqualToReference(MakeCpuExecutor(), coverage);
}
#endif

}  // namespace
}  // namespace simgrad::sim::equality
