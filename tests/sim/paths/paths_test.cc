// Paths: a recorded run is the plain one, a run forced along its own path gives its bits, and one
// forced along another's decides as that did.
#include "sim/program/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "sim/program/lower.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using equality::Case;
using equality::FirstDifference;
using equality::Observe;
using equality::Observed;

std::shared_ptr<Executor> Reference() { return MakeReferenceExecutor(); }

// The work of another lowering of the same world: inputs, cotangents and what is recorded go along.
Work Moved(const Work& from, NumericalProgram program, const Tensor* path) {
  Work work = from;
  const NumericalProgram& before = *from.batch.program;
  work.batch.inputs.clear();
  for (const Input& input : program.program.inputs) {
    Binding& binding = work.batch.inputs.emplace_back();
    if (input.name == kPathGiven) {
      binding = {*path, true, true};
      continue;
    }
    for (size_t i = 0; i < before.program.inputs.size(); ++i) {
      const Input& old = before.program.inputs[i];
      if (old.kind == input.kind && old.name == input.name) binding = from.batch.inputs[i];
    }
  }
  if (!program.program.exports.empty() && program.program.exports.back().name == kPathTaken) {
    const auto last = static_cast<int32_t>(program.program.exports.size()) - 1;
    work.options.record_exports.push_back(last);
  }
  if (program.adjoint)
    work.batch.cotangents.trajectory_export.resize(program.program.exports.size());
  work.batch.program = std::make_shared<const NumericalProgram>(std::move(program));
  return work;
}

absl::StatusOr<NumericalProgram> Again(const Program& world, const NumericalProgram& plain,
                                       const std::optional<AdjointSpec>& asked, PathUse use) {
  return Lower(world, plain.policy, plain.objective, asked, nullptr, use);
}

// What is left of a run of so many inputs when its diagnostics are taken away.
Observed Numbers(const Observed& run, size_t inputs) {
  Observed numbers = run;
  numbers.connected.resize(std::min(inputs, run.connected.size()));
  numbers.instance_gradients.resize(std::min(inputs, run.instance_gradients.size()));
  numbers.diagnostics = {};
  numbers.sites.clear();
  numbers.result.path_signatures.clear();
  numbers.result.batch_path_signature = 0;
  numbers.result.first_event_steps.clear();
  numbers.result.certificates.clear();
  for (InputGradient& gradient : numbers.result.gradients) gradient.gated_by.clear();
  return numbers;
}

// Tests that disagreed with the path, of all sites and steps.
uint64_t Disagreements(const Work& work, const Observed& run) {
  uint64_t count = 0;
  size_t event = 0;
  for (const Site& site : work.batch.program->sites) {
    if (site.kind != SiteKind::kEvent) continue;
    const auto& steps = run.diagnostics.events[event++];
    if (!site.name.starts_with(kForcedSite)) continue;
    for (const EventStep& step : steps) count += step.count;
  }
  return count;
}

TEST(Paths, OfRandomProgramsAreTakenAndFollowedToTheBit) {
  constexpr uint64_t kCases = 60;
  int recorded_cases = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    const absl::StatusOr<Case> made = equality::MakeCase(seed, {.instances = 3, .steps = 3});
    ASSERT_TRUE(made.ok()) << made.status();
    Work plain = made->work;
    plain.options.recording = Recording::kInstances;
    const NumericalProgram& program = *plain.batch.program;
    auto recording = Again(made->world, program, made->asked, PathUse::kRecorded);
    if (FieldOf(recording.status()) == "path") continue;  // a cost decides
    ASSERT_TRUE(recording.ok()) << recording.status();
    if (recording->path->bytes == 0) continue;
    const size_t inputs = program.program.inputs.size();
    ++recorded_cases;
    const auto expected = Observe(Reference(), plain);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const Work record = Moved(plain, *std::move(recording), nullptr);
    auto recorded = Observe(Reference(), record);
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    const Tensor path = recorded->exports.back();
    recorded->exports.pop_back();
    EXPECT_EQ(FirstDifference(*expected, *recorded), std::nullopt);
    auto forcing = Again(made->world, program, made->asked, PathUse::kForced);
    ASSERT_TRUE(forcing.ok()) << forcing.status();
    const Work force = Moved(plain, *std::move(forcing), &path);
    const auto forced = Observe(Reference(), force);
    ASSERT_TRUE(forced.ok()) << forced.status();
    EXPECT_EQ(FirstDifference(Numbers(*expected, inputs), Numbers(*forced, inputs)), std::nullopt);
    // From the step on in which an instance was stopped, its path is 0.
    const auto stopped = [](const InstanceHealth& health) { return health.stopped; };
    const auto& health = expected->result.health;
    if (std::any_of(health.begin(), health.end(), stopped)) continue;
    EXPECT_EQ(Disagreements(force, *forced), 0u);
  }
  EXPECT_GT(recorded_cases, 40);
}

}  // namespace
}  // namespace simgrad::sim
