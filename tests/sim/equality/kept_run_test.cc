// A forward pass that was kept and is reversed later gives the bits of the gradient, on random
// programs, policies and inputs.
#include "sim/engine/kept_run.h"

#include <iostream>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/equality/two_parts.h"

namespace simgrad::sim::equality {
namespace {

constexpr uint64_t kCases = kSanitized ? 6 : 60;

void ExpectEqual(const Engine& engine, const Work& gradient, const WorkResult& reversed) {
  Observer nobody;
  const auto whole = engine.Execute(gradient, nobody);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto difference = DifferenceOfReversal(*whole, reversed);
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
      const auto kept = KeepForward(engine, work, work.batch.program);
      ASSERT_TRUE(kept.ok()) << kept.status();
      if (interval == 2) {
        ASSERT_TRUE(ReverseFor(engine, **kept, work).ok());
      }
      const auto reversed = ReverseFor(engine, **kept, work);
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
    if (made->work.batch.program->path) continue;
    const auto program = LowerForAll(*made);
    ASSERT_TRUE(program.ok()) << program.status();
    const auto kept = KeepForward(engine, made->work, *program);
    ASSERT_TRUE(kept.ok()) << kept.status();
    const auto reversed = ReverseFor(engine, **kept, made->work);
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
