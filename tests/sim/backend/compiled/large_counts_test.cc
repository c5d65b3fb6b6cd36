// What compiled code needs for programs of 5,000 and 20,000 operations, in counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/engine.h"
#include "sim/plan/cut.h"
#include "sim/plan/make_plan.h"
#include "sim/plan/structure.h"
#include "sim/program/held_bytes.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

constexpr int64_t kInstances = 4096;
constexpr int64_t kSteps = 100;
constexpr int64_t kMiB = int64_t{1} << 20;

// The gradient of the sum over all instances, with respect to everything.
Work GradientWork(int64_t operations, int64_t instances = kInstances, int64_t steps = kSteps) {
  const Program world = large::LargeProgram(operations);
  auto lowered = tests::LowerForGradient(world, tests::PolicyOf({}), world.objectives.front().name);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  Work work = tests::WorkOf(*std::move(lowered), instances, steps);
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
  int64_t gradient_mib;  // that a gradient reserves on two threads, at most
  int64_t plan_mib;      // with its program, at most
  int64_t forward_mib;   // that compiling takes, at most
  int64_t adjoint_mib;
  size_t forward_functions;  // that the compiler is given, at most: pieces of large ones
  size_t adjoint_functions;
};

size_t FunctionsCompiled(const plan::Plan& plan, Part part) {
  size_t count = 0;
  for (const plan::Function* function : FunctionsOf(plan, part)) {
    count += std::max<size_t>(function->pieces.size(), 1);
    EXPECT_LE(plan::LargestPiece(*function), plan::CutLimits().whole);
  }
  return count;
}

class LargePrograms : public testing::TestWithParam<Expected> {};

// States are 759 numbers. 4 GiB is what a gradient may take in all.
TEST_P(LargePrograms, AreAdmittedWithinTheirCounts) {
  const Expected& most = GetParam();
  if (kSanitized && most.operations > 5'000) GTEST_SKIP() << "counts are those of every build";
  Work work = GradientWork(most.operations);
  work.options.threads = 2;
  const auto executor = MakeCompiledExecutor(CompiledOptions());
  const auto bytes = EstimateBytes(work, *executor);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LE(*bytes, most.gradient_mib * kMiB);
  EXPECT_LE(*bytes, int64_t{4} << 30);
  // One plan for admission and run.
  EXPECT_EQ(executor->use().plans, 1);
  EXPECT_LE(executor->use().plan_bytes, most.plan_mib * kMiB);
  const plan::Plan plan = plan::CutLargeFunctions(
      plan::PlacedPlan(*work.batch.program, {.decides = true, .looks = true, .ranges = true}));
  // The cache keeps the program with its plan.
  EXPECT_GT(executor->use().plan_bytes, plan::HeldBytes(plan) + HeldBytes(*work.batch.program));
  EXPECT_LE(FunctionsCompiled(plan, Part::kForward), most.forward_functions);
  EXPECT_LE(FunctionsCompiled(plan, Part::kAdjoint), most.adjoint_functions);
  EXPECT_LE(CompileBytes(plan, Part::kForward), most.forward_mib * kMiB);
  EXPECT_LE(CompileBytes(plan, Part::kAdjoint), most.adjoint_mib * kMiB);
}

// However many pieces it has, a program that runs takes one plan and two kernels.
TEST(LargeProgram, HasAnEntryInEachCacheForEachPart) {
  if (kSanitized) GTEST_SKIP() << "it takes minutes to compile under sanitizers";
  Work work = GradientWork(IsLong() ? 20'000 : 5'000, 1, 1);
  const auto executor = MakeCompiledExecutor(KernelOptions{.effort = Effort::kQuick});
  for (int time = 0; time < 2; ++time) {
    const auto run = executor->Create(work.batch, work.options);
    ASSERT_TRUE(run.ok()) << run.status();
    while (executor->use().compiler.kernels < 2) std::this_thread::yield();
  }
  EXPECT_EQ(executor->use().compiler.compiled, 2u);
  EXPECT_EQ(executor->use().compiler.kernels, 2);
  EXPECT_EQ(executor->use().plans, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LargePrograms,
                         testing::Values(Expected{5'000, 560, 40, 23, 102, 14, 85},
                                         Expected{20'000, 1660, 156, 66, 387, 51, 337}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.operations);
                         });

}  // namespace
}  // namespace simgrad::sim::compiled
