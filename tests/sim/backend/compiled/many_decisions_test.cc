// Decisions of more instances than a block has lanes: what the recorder counts for many lanes at
// once is what the reference counts one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 600;  // a block of 512, and one that is not full

struct Case {
  std::string name;
  Config configuration;
  std::string preset = "f32";
  int64_t elements = 1;
  int64_t steps = 12;
  bool odd_numbers = false;  // NaN, infinities, subnormals and both zeros among the heights
  bool stuck = false;        // one instance in 37 never comes out of its loop
  bool slow = false;         // instances need up to hundreds of iterations
};

// Heights that repeat, so that margins tie, some of them next to what the loop stops at.
std::vector<double> Heights(const Case& c, double tol) {
  std::vector<double> heights;
  for (int64_t i = 0; i < kInstances * c.elements; ++i) {
    const double spread = static_cast<double>((i * 7919) % 97) / 97.0;
    const double near = -tol * (1.0 + std::ldexp(static_cast<double>(i % 23) - 11.0, -20));
    const double values[] = {-4e-3 * spread, near, 0.02 * spread, -near, -1e-3};
    heights.push_back(values[(i / 3) % 5]);
  }
  if (c.odd_numbers) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double odd[] = {0.0, -0.0, kInfinity, -kInfinity, std::nan(""), 1e-42, -1e-42, -3e38};
    for (size_t i = 5; i < heights.size(); i += 41) heights[i] = odd[(i / 41) % 8];
  }
  return heights;
}

Work WorkOfCase(const Case& c) {
  constexpr double kTol = 1e-4;
  auto configuration = c.configuration;
  configuration["elements"] = static_cast<double>(c.elements);
  precision::PolicySpec policy;
  policy.preset = c.preset;
  auto program =
      Lower(*BuildWorld("bouncing_ball", configuration), tests::PolicyOf(policy), "", std::nullopt);
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, c.steps);
  work.options.recording = Recording::kSummary;
  tests::Bind(work, InputKind::kState, "y",
              {tests::Doubles(Heights(c, kTol), {kInstances, c.elements}), true, false});
  std::vector<double> speeds(static_cast<size_t>(kInstances * c.elements), 0.0);
  tests::Bind(work, InputKind::kState, "v",
              {tests::Doubles(speeds, {kInstances, c.elements}), true, false});
  std::vector<double> gains(kInstances, 1.0);
  for (size_t i = 0; c.slow && i < gains.size(); ++i)
    gains[i] = 1.0 / static_cast<double>(1 + i % 50);
  for (size_t i = 0; c.stuck && i < gains.size(); i += 37) gains[i] = 1e-7;
  tests::Bind(work, InputKind::kParam, "k", {tests::Doubles(gains, {kInstances}), true, false});
  return work;
}

void ExpectEqualToReference(const Work& work, const std::string& what) {
  const auto expected = equality::Observe(MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const compiled::Isa isa : compiled::IsasOfThisMachine()) {
    for (const int parts : {1, 2}) {
      // In pieces too, where nothing hides what they forget.
      const std::shared_ptr<Executor> executor = compiled::MakeCompiledExecutor(
          compiled::KernelOptions{.isa = isa,
                                  .effort = compiled::Effort::kQuick,
                                  .parts = parts,
                                  .cut = {.whole = parts == 1 ? 0 : int64_t{1} << 40, .piece = 1}});
      const auto found = equality::Observe(executor, work);
      ASSERT_TRUE(found.ok()) << found.status();
      const auto difference = equality::FirstDifference(*found, *expected);
      EXPECT_FALSE(difference) << *difference << " in " << what << ", " << compiled::IsaName(isa)
                               << ", " << parts << " vectors side by side";
    }
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {.name = "f32", .configuration = {{"clamp", false}}, .steps = 40},
      {.name = "clamped", .configuration = {{"clamp", true}}},
      {.name = "bf16", .configuration = {{"clamp", false}}, .preset = "bf16_unsafe"},
      {.name = "f16", .configuration = {{"clamp", false}}, .preset = "f16_unsafe"},
      {.name = "f16_safe", .configuration = {{"clamp", false}}, .preset = "f16_safe"},
      {.name = "f64", .configuration = {{"clamp", false}}, .preset = "f64"},
      {.name = "odd numbers", .configuration = {{"clamp", false}}, .odd_numbers = true},
      {.name = "odd numbers, bf16",
       .configuration = {{"clamp", false}},
       .preset = "bf16_unsafe",
       .odd_numbers = true},
      {.name = "cap", .configuration = {{"clamp", false}, {"max_iter", 3.0}}},
      {.name = "many outcomes",
       .configuration = {{"clamp", false}, {"max_iter", 400.0}},
       .steps = 4,
       .slow = true},
      {.name = "packed",
       .configuration = {{"clamp", false}, {"max_iter", 300.0}},
       .steps = 3,
       .stuck = true,
       .slow = true},
      {.name = "elements", .configuration = {{"clamp", false}}, .elements = 3},
      {.name = "each element",
       .configuration = {{"clamp", false}, {"scope", std::string("element")}},
       .elements = 3,
       .odd_numbers = true},
      {.name = "entry", .configuration = {{"clamp", false}, {"tol_enter", 2e-4}}},
  };
  if (!kSanitized) return cases;
  std::erase_if(cases, [](const Case& c) { return c.elements == 1 && c.preset != "bf16_unsafe"; });
  for (Case& c : cases) c.steps = 4;
  return cases;
}

TEST(ManyDecisions, AreCountedAsTheReferenceCountsThem) {
  for (const Case& c : Cases()) ExpectEqualToReference(WorkOfCase(c), c.name);
}

// What level `counts` leaves open.
void Forget(StepDiagnostics& diagnostics) {
  for (std::vector<TerminationStep>& column : diagnostics.terminations) {
    for (TerminationStep& step : column) {
      step.margin = {};
      step.tested_min = step.tested_max = 0.0;
    }
  }
  for (std::vector<EventStep>& column : diagnostics.events) {
    for (EventStep& step : column) {
      step.margin = {};
      step.nan_margins = 0;
    }
  }
  diagnostics.sampled_steps.clear();
  diagnostics.states.clear();
  diagnostics.stride = 0;
}

TEST(ManyDecisions, AreCountedTheSameWhereTheirMarginsAreNotRecorded) {
  for (const Case& c : Cases()) {
    Work work = WorkOfCase(c);
    auto expected = equality::Observe(MakeReferenceExecutor(), work);
    work.options.recording = Recording::kCounts;
    auto found = equality::Observe(MakeCpuExecutor(), work);
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    Forget(expected->diagnostics);
    Forget(found->diagnostics);
    const auto difference = equality::FirstDifference(*found, *expected);
    EXPECT_FALSE(difference) << *difference << " in " << c.name;
  }
}

TEST(ManyDecisions, TiesGoToTheSmallerIdInAnyOrder) {
  for (const bool descending : {true, false}) {
    Work work =
        WorkOfCase({.name = "", .configuration = {{"clamp", false}}, .steps = kSanitized ? 4 : 30});
    for (int64_t i = 0; i < kInstances; ++i) {
      const int64_t id = descending ? kInstances - 1 - i : (i * 271) % kInstances;
      work.batch.instance_ids[static_cast<size_t>(i)] = static_cast<uint64_t>(id);
    }
    ExpectEqualToReference(work, descending ? "descending ids" : "shuffled ids");
  }
}

}  // namespace
}  // namespace simgrad::sim
