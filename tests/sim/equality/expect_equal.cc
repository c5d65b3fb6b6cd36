#include "tests/sim/equality/expect_equal.h"

#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/equality/single_row.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = 400;
constexpr uint64_t kLongTimes = 30;  // as many times more under --long
constexpr int kReportedFailures = 3;
// Under sanitizers: other cases than without, fewer of them.
constexpr uint64_t kSanitizedCases = 30;
constexpr uint64_t kSanitizedLargeCases = 2;
constexpr uint64_t kSanitizedMatmulCases = 10;
constexpr uint64_t kFirstSanitizedSeed = 1'000'001;

struct Seeds {
  uint64_t first = 1;
  uint64_t count = kCases;
};

// `plain`, with as many as the environment and the build ask for.
Seeds Chosen(Seeds plain, Seeds sanitized) {
  if (const uint64_t one = FromEnvironment("SIMGRAD_SEED"); one != 0) return {one, 1};
  Seeds seeds = kSanitized ? sanitized : plain;
  if (IsLong()) seeds.count *= kLongTimes;
  return seeds;
}

Seeds ChosenSeeds() { return Chosen({1, kCases}, {kFirstSanitizedSeed, kSanitizedCases}); }

// Two steps are one that begins the reverse pass and one within it.
CaseOptions LargeOptions(uint64_t seed) {
  Random random(seed ^ 0x1A26Eu);
  CaseOptions options;
  options.instances = 3;
  options.steps = 2;
  options.size = random.Integer(600, 6000);
  return options;
}

constexpr size_t kToldBytes = 20'000;

std::string Story(const Case& made) {
  const Work& work = made.work;
  return "run this case alone with SIMGRAD_SEED=" + std::to_string(made.seed) + "; instances " +
         std::to_string(work.batch.instances) + ", steps " + std::to_string(work.batch.steps) +
         ", chunk " + std::to_string(work.chunk_steps) + ", checkpoints " +
         std::to_string(work.checkpoint_interval) + ", gradient " +
         std::to_string(work.gradient.has_value()) + "\n" +
         work.batch.program->text.substr(0, kToldBytes);
}

}  // namespace

namespace {

// `make`: the case of a seed; `met`: told of each case and of what the reference gives.
template <class Make, class Met>
void ExpectEqual(const std::vector<NamedExecutor>& executors, const Seeds& seeds, const Make& make,
                 const Met& met) {
  const std::shared_ptr<Executor> reference = MakeReferenceExecutor();
  int failures = 0;
  for (uint64_t i = 0; i < seeds.count && failures < kReportedFailures; ++i) {
    const uint64_t seed = seeds.first + i;
    const absl::StatusOr<Case> made = make(seed);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    const absl::StatusOr<Observed> expected = Observe(reference, made->work);
    ASSERT_TRUE(expected.ok()) << expected.status() << "\n" << Story(*made);
    met(*made, *expected);
    for (size_t k = 0; k < executors.size() && failures < kReportedFailures; ++k) {
      const Work cut = Recut(made->work, seed + k * 0x10000u);
      const absl::StatusOr<Observed> actual = Observe(executors[k].executor, cut);
      ASSERT_TRUE(actual.ok()) << actual.status() << "\n" << Story(*made);
      const std::optional<std::string> difference = FirstDifference(*expected, *actual);
      if (!difference) continue;
      ++failures;
      ADD_FAILURE() << "reference against " << executors[k].name << ", " << *difference << "\n"
                    << Story(*made);
    }
  }
}

}  // namespace

void ExpectEqualToReference(const std::vector<NamedExecutor>& executors, Coverage& coverage) {
  ExpectEqual(
      executors, ChosenSeeds(), [](uint64_t seed) { return MakeCase(seed); },
      [&](const Case& made, const Observed& seen) { coverage.Add(made, seen); });
}

void ExpectLargeEqualToReference(const std::vector<NamedExecutor>& executors,
                                 LargeCoverage& coverage) {
  ExpectEqual(
      executors, Chosen({1, kLargeCases}, {kFirstSanitizedSeed, kSanitizedLargeCases}),
      [](uint64_t seed) { return MakeCase(seed, LargeOptions(seed)); },
      [&](const Case& made, const Observed& seen) { coverage.Add(made, seen); });
}

void ExpectMatmulsEqualToReference(const std::vector<NamedExecutor>& executors,
                                   MatmulCoverage& coverage) {
  ExpectEqual(
      executors, Chosen({1, kMatmulCases}, {kFirstSanitizedSeed, kSanitizedMatmulCases}),
      [](uint64_t seed) { return MakeCase(seed, {.multiplies = true}); },
      [&](const Case& made, const Observed&) { coverage.Add(made); });
}

void ExpectInstancesAlone(std::shared_ptr<Executor> executor) {
  const Seeds seeds = ChosenSeeds();
  int failures = 0;
  for (uint64_t i = 0; i < seeds.count && failures < kReportedFailures; i += 5) {
    const uint64_t seed = seeds.first + i;
    const absl::StatusOr<Case> made = MakeCase(seed);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    const absl::StatusOr<Observed> all = Observe(executor, made->work);
    ASSERT_TRUE(all.ok()) << all.status() << "\n" << Story(*made);
    const uint64_t rows = static_cast<uint64_t>(made->work.batch.instances);
    const int64_t row = static_cast<int64_t>(seed % rows);
    const absl::StatusOr<Observed> alone = Observe(executor, AloneWork(made->work, row));
    ASSERT_TRUE(alone.ok()) << alone.status() << "\n" << Story(*made);
    const auto difference = FirstDifferenceOfRow(made->work, *all, row, *alone);
    if (!difference) continue;
    ++failures;
    ADD_FAILURE() << executor->name() << ", " << *difference << "\n" << Story(*made);
  }
}

bool IsWholeSeries(const Coverage& coverage) { return coverage.cases >= static_cast<int>(kCases); }

}  // namespace simgrad::sim::equality
