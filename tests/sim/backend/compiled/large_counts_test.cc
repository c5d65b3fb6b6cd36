// What compiled code needs for programs of 5,000 and 20,000 operations, in counts.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/compiled/memory_need.h"
#include "sim/engine.h"
#include "sim/plan/structure.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

constexpr int64_t kInstances = 4096;
constexpr int64_t kSteps = 100;
constexpr int64_t kMiB = int64_t{1} << 20;

// The gradient of the sum over all instances, with respect to everything.
Work GradientWork(int64_t operations) {
  const Program world = large::LargeProgram(operations);
  auto lowered = tests::LowerForGradient(world, tests::PolicyOf({}), world.objectives.front().name);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), kInstances, kSteps);
  for (const Input& input : work.batch.program->program.inputs) {
    if (input.kind == InputKind::kStep || !input.used) continue;
    const Shape& shape = work.batch.program->program[input.value].type.shape;
    const size_t count = static_cast<size_t>(ElementCount(shape));
    tests::Bind(work, input.kind, input.name,
                tests::Shared(std::vector<double>(count, 0.25), shape));
  }
  work.gradient.emplace();
  return work;
}

struct Expected {
  int64_t operations;
  int64_t state_numbers, states_at_least;
  int64_t statements;     // of all functions, at most
  int64_t functions;      // forward, adjoint
  int64_t bytes;          // that a gradient reserves, at most
  int64_t compile_bytes;  // at most
};

TEST(LargePrograms, AreAdmittedWithinCounts) {
  for (const auto& [operations, most_bytes] :
       {std::pair<int64_t, int64_t>{5'000, 0}, std::pair<int64_t, int64_t>{20'000, 0}}) {
    const Work work = GradientWork(operations);
    CompiledOptions options;
    const auto executor = MakeCompiledExecutor(options);
    const auto bytes = EstimateBytes(work, *executor);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(executor->use().plans, 1);
    std::printf("%ld operations: %ld MiB, plan %ld KiB\n", operations, *bytes / kMiB,
                executor->use().plan_bytes >> 10);
    (void)most_bytes;
  }
}

}  // namespace
}  // namespace simgrad::sim::compiled
