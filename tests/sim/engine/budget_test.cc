// Memory: what admission counts before a run, and what the adjoint checks after it.
#include <gtest/gtest.h>

#include "tests/sim/cpu_executor.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using sim::InputKind;
using sim::Work;

// Elements that are pushed back by k times their depth until it is below 1e-4; k = 1 is quick.
Work Projection(double max_iter, int64_t instances, double k, bool gradient) {
  const auto world =
      sim::BuildWorld("boundary_projection", {{"elements", 4.0}, {"max_iter", max_iter}});
  EXPECT_TRUE(world.ok()) << world.status();
  precision::PolicySpec f32;
  f32.preset = "f32";
  auto program =
      tests::LowerForGradient(*world, tests::PolicyOf(f32), gradient ? "final_penetration" : "");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), instances, 3);
  work.options.recording = sim::Recording::kSummary;
  tests::Bind(work, InputKind::kState, "y", tests::Shared({-1, -0.5, 0.25, -0.125}, {4}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({k}, {}));
  return work;
}

TEST(EstimateBytes, AForwardRunIsNotChargedForCapsThatNoLoopReaches) {
  for (int64_t instances : {1, 4096}) {
    EXPECT_EQ(sim::EstimateBytes(Projection(100'000, instances, 1.0, false)),
              sim::EstimateBytes(Projection(3, instances, 1.0, false)));
  }
}

TEST(EstimateBytes, AnAdjointIsChargedItsBudgetAtMostWhateverTheCap) {
  Work work = Projection(100'000, 4096, 1.0, true);
  Work forward = work;
  forward.gradient.reset();
  work.memory_budget_bytes = 1 << 20;
  // And the gradients: y of 4 elements per instance and three parameters, three times.
  constexpr int64_t kGradients = 3 * 8 * 4096 * (4 + 8);
  EXPECT_LE(sim::EstimateBytes(work) - sim::EstimateBytes(forward), (1 << 20) + kGradients);
}

// Counts how often the engine asked to go on, by phase.
class Phases : public sim::Observer {
 public:
  absl::Status Continue(sim::WorkPhase phase) override {
    ++asked[static_cast<size_t>(phase)];
    return absl::OkStatus();
  }
  std::array<int64_t, 3> asked{};
};

class AdjointBudget : public ::testing::TestWithParam<bool> {
 protected:
  static sim::Engine MakeEngine() {
    return sim::Engine(GetParam() ? sim::MakeCpuExecutor()
                                  : std::shared_ptr<sim::Executor>(sim::MakeReferenceExecutor()));
  }
  // A budget for some hundred iterations of four elements, beside what the executor always takes.
  static constexpr int64_t kBudget = int64_t{8} << 20;
};

TEST_P(AdjointBudget, IsCheckedAgainstTheIterationsThatRanNotTheCap) {
  Phases phases;
  Work work = Projection(100'000, 4, 1.0, true);
  work.memory_budget_bytes = kBudget;
  work.options.threads = 1;
  const auto result = MakeEngine().Execute(work, phases);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->adjoint_steps, 3 * 4);
}

TEST_P(AdjointBudget, IsExhaustedRightAfterTheForwardRunWithFiguresAndAWayOut) {
  Phases phases;
  // Nearly no push: every loop runs to its cap.
  Work work = Projection(10'000, 4, 1e-9, true);
  work.memory_budget_bytes = kBudget;
  work.options.threads = 1;
  const auto result = MakeEngine().Execute(work, phases);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  const std::string message(result.status().message());
  EXPECT_NE(message.find(std::to_string(kBudget)), std::string::npos) << message;
  EXPECT_NE(message.find("smaller max_iter"), std::string::npos) << message;
  EXPECT_GT(phases.asked[static_cast<size_t>(sim::WorkPhase::kForward)], 0);
  EXPECT_EQ(phases.asked[static_cast<size_t>(sim::WorkPhase::kRecompute)], 0);
  EXPECT_EQ(phases.asked[static_cast<size_t>(sim::WorkPhase::kAdjoint)], 0);
}

INSTANTIATE_TEST_SUITE_P(Executors, AdjointBudget, ::testing::Bool(),
                         [](const auto& executor) { return executor.param ? "cpu" : "reference"; });

}  // namespace
}  // namespace simgrad
