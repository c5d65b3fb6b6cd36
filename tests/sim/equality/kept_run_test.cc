// A forward pass that was kept and is reversed later gives the bits of the gradient, on random
// programs, policies and inputs.
#include "sim/engine/kept_run.h"

#include <iostream>
#include <map>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/lower.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = kSanitized ? 6 : 60;

using Lowered = std::shared_ptr<const NumericalProgram>;

// `gradient` in two parts: a forward pass of `program`, kept, and its reversal.
absl::StatusOr<WorkResult> InTwoParts(const Engine& engine, const Work& gradient, Lowered program,
                                      int reversals = 1) {
  Work forward = gradient;
  forward.gradient.reset();
  forward.batch.cotangents = {};
  forward.batch.program = std::move(program);
  forward.batch.inputs.resize(forward.batch.program->program.inputs.size());
  forward.keep = true;
  Observer nobody;
  const absl::StatusOr<WorkResult> run = engine.Execute(forward, nobody);
  if (!run.ok()) return run.status();
  if (run->kept == nullptr) return absl::InternalError("nothing was kept");
  absl::StatusOr<WorkResult> reversed;
  for (int k = 0; k < reversals; ++k) {
    Work work = WorkOf(*run->kept);
    work.batch.program = gradient.batch.program;
    work.batch.inputs.resize(work.batch.program->program.inputs.size());
    work.batch.cotangents = gradient.batch.cotangents;
    work.gradient = gradient.gradient;
    work.weights = gradient.weights;
    work.memory_budget_bytes = gradient.memory_budget_bytes;
    work.max_certificates = gradient.max_certificates;
    reversed = engine.Reverse(*run->kept, work, nobody);
    if (!reversed.ok()) break;
  }
  return reversed;
}

void ExpectEqual(const Engine& engine, const Work& gradient, const WorkResult& reversed) {
  Observer nobody;
  Observed whole;
  Observed parts;
  auto result = engine.Execute(gradient, nobody);
  ASSERT_TRUE(result.ok()) << result.status();
  whole.result = *std::move(result);
  whole.result.final_states.clear();
  parts.result = reversed;
  const auto difference = FirstDifference(whole, parts);
  EXPECT_FALSE(difference) << *difference;
}

class KeptRuns : public ::testing::TestWithParam<bool> {
 protected:
  // An executor of the test's own: what it still compiles at the end (adjoints that were kept for
  // and not asked for) ends with it, before the statics of LLVM go.
  static Engine MakeEngine() {
#if defined(SIMGRAD_WITH_COMPILED)
    if (GetParam()) {
      return Engine(compiled::MakeCompiledExecutor(
          compiled::KernelOptions{.effort = compiled::Effort::kQuick}));
    }
#endif
    return Engine(std::shared_ptr<Executor>(MakeReferenceExecutor()));
  }
};

TEST_P(KeptRuns, ReversedGiveTheBitsOfTheGradientWhateverTheCheckpoints) {
  const Engine engine = MakeEngine();
  int64_t compared = 0;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    SCOPED_TRACE(seed);
    const auto made = MakeCase(seed);
    if (!made.ok() || !made->work.gradient) continue;
    for (int64_t interval : {0, 1, 2, 3}) {
      Work work = made->work;
      work.checkpoint_interval = interval;
      const auto reversed = InTwoParts(engine, work, work.batch.program, interval == 2 ? 2 : 1);
      ASSERT_TRUE(reversed.ok()) << reversed.status();
      EXPECT_EQ(reversed->forward_steps, 0) << "the same program is not run forward again";
      ExpectEqual(engine, work, *reversed);
    }
    ++compared;
  }
  EXPECT_GT(compared, static_cast<int64_t>(kCases) / 4);
}

// Kept for all inputs and final states, reversed for what the case asks.
TEST_P(KeptRuns, ReversedForAnotherAdjointGiveTheBitsOfTheGradient) {
  const Engine engine = MakeEngine();
  int64_t resumed = 0;
  int64_t compared = 0;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    SCOPED_TRACE(seed);
    const auto made = MakeCase(seed);
    if (!made.ok() || !made->work.gradient || !made->asked) continue;
    AdjointSpec all = *made->asked;
    const auto states = made->world.InputsOf(InputKind::kState);
    all.final_state.assign(states.size(), false);
    for (size_t k = 0; k < states.size(); ++k) {
      all.final_state[k] =
          made->world.IsReal(made->world.inputs[static_cast<size_t>(states[k])].value);
    }
    for (size_t i = 0; i < made->world.inputs.size(); ++i) {
      all.wanted[i] = IsDifferentiable(made->world, made->world.inputs[i]);
    }
    const NumericalProgram& asked = *made->work.batch.program;
    if (asked.path) continue;
    auto program = Lower(made->world, asked.policy, all.objective, all);
    ASSERT_TRUE(program.ok()) << program.status();
    const auto reversed =
        InTwoParts(engine, made->work, std::make_shared<NumericalProgram>(*std::move(program)));
    ASSERT_TRUE(reversed.ok()) << reversed.status();
    ExpectEqual(engine, made->work, *reversed);
    resumed += reversed->forward_steps == 0;
    ++compared;
  }
  std::cout << resumed << " of " << compared << " were not run forward again\n";
  EXPECT_GT(2 * resumed, compared);
}

INSTANTIATE_TEST_SUITE_P(Executors, KeptRuns, ::testing::Bool(),
                         [](const auto& executor) { return executor.param ? "cpu" : "reference"; });

}  // namespace
}  // namespace simgrad::sim::equality
