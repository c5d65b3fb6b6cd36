// Cotangents of a ball at rest shrink in every iteration, and end as the smallest subnormals.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = kSanitized ? 3 : 20;
constexpr int64_t kSteps = 700;

Work BallWork(const std::string& preset) {
  precision::PolicySpec policy;
  policy.preset = preset;
  const auto world = BuildWorld("bouncing_ball", {{"clamp", false}});
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(policy), "final_height");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  std::vector<double> heights;
  for (int64_t i = 0; i < kInstances; ++i) heights.push_back(0.01 + 0.002 * static_cast<double>(i));
  const std::vector<double> zeros(heights.size());
  tests::Bind(work, InputKind::kState, "y",
              {tests::Doubles(heights, {kInstances, 1}), true, false});
  tests::Bind(work, InputKind::kState, "v", {tests::Doubles(zeros, {kInstances, 1}), true, false});
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({1.0}, {}));
  return work;
}

TEST(DecayedGradient, HasTheBitsOfTheReference) {
  for (const std::string preset : {"f32", "bf16_unsafe"}) {
    const Work work = BallWork(preset);
    const auto expected = equality::Observe(MakeReferenceExecutor(), work);
    const auto found = equality::Observe(MakeCpuExecutor(), work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(found.ok()) << found.status();
    const auto difference = equality::FirstDifference(*found, *expected);
    EXPECT_FALSE(difference) << preset << ": " << *difference;
    // Otherwise this would say nothing about subnormals.
    const BackwardStep& first = expected->result.backward.front();
    EXPECT_GT(first.largest, 0.0) << preset;
    EXPECT_LT(first.largest, 0x1p-126) << preset;
  }
}

// With products that evade subnormal numbers from the first step on.
TEST(DecayedGradient, HasTheBitsOfTheReferenceWithEvadingProductsInEveryInstructionSet) {
  for (const std::string preset : {"f32", "bf16_unsafe", "f64"}) {
    Work work = BallWork(preset);
    work.options.recording = Recording::kNone;
    const auto expected = equality::Observe(MakeReferenceExecutor(), work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const compiled::Isa isa : compiled::IsasOfThisMachine()) {
      if (!compiled::FusesMultiplyAdd(isa)) continue;
      const std::shared_ptr<Executor> executor =
          compiled::MakeCompiledExecutor(compiled::KernelOptions{.isa = isa, .near_zero = true});
      const auto found = equality::Observe(executor, work);
      ASSERT_TRUE(found.ok()) << found.status();
      const auto difference = equality::FirstDifference(*found, *expected);
      EXPECT_FALSE(difference) << preset << ", " << compiled::IsaName(isa) << ": " << *difference;
    }
  }
}

// A cotangent of an f16 adjoint is rounded below its smallest normal number long before an f32 is near zero.
TEST(DecayedGradient, OfF16AsksForNoProductsThatEvadeSubnormals) {
  const std::unique_ptr<compiled::CompiledExecutor> made =
      compiled::MakeCompiledExecutor(compiled::KernelOptions{.effort = compiled::Effort::kQuick});
  const std::shared_ptr<Executor> executor(made.get(), [](Executor*) {});
  Work work = BallWork("f16_unsafe");
  work.batch.steps = 100;
  work.options.recording = Recording::kSummary;
  const auto found = equality::Observe(executor, work);
  ASSERT_TRUE(found.ok()) << found.status();
  // Otherwise this would say nothing about tiny numbers.
  const auto& columns = found->result.backward;
  const bool meets_tiny = std::any_of(columns.begin(), columns.end(), [](const BackwardStep& step) {
    return step.largest > 0 && step.largest < 0x1p-14;
  });
  EXPECT_TRUE(meets_tiny);
  EXPECT_EQ(made->use().compiler.compiled, 2u);  // forwards and backwards
}

}  // namespace
}  // namespace simgrad::sim
