// A plan is compiled once for what it depends on, and for nothing else.
#include "sim/backend/cpu/plan_cache.h"

#include <gtest/gtest.h>

#include "sim/backend/cpu/cpu_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::cpu {
namespace {

std::shared_ptr<const NumericalProgram> Decay() {
  Builder b("decay");
  const Var x = b.State("x", {});
  b.SetNext({x * b.Param("k", {}, 0.5)});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  auto lowered = tests::LowerForGradient(*program, tests::PolicyOf({}), "end");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return std::make_shared<const NumericalProgram>(*std::move(lowered));
}

TEST(PlanCache, KeepsOnePlanForEachProgramFormAndPurpose) {
  PlanCache cache(*BaselineKernels());
  const auto program = Decay();
  const std::vector<InputForm> shared(program->program.inputs.size());
  std::vector<InputForm> own = shared;
  own[0].per_instance = true;
  const auto first = cache.Get(program, shared, {});
  EXPECT_EQ(cache.Get(program, shared, {}), first);
  EXPECT_NE(cache.Get(program, own, {}), first);
  EXPECT_NE(cache.Get(program, shared, {.diagnostics = false}), first);
  EXPECT_NE(cache.Get(program, shared, {.adjoint = true}), first);
  EXPECT_NE(cache.Get(Decay(), shared, {}), first);
  EXPECT_EQ(cache.Get(program, shared, {}), first);
}

TEST(PlanCache, ForgetsWhatWasNotUsedForLongest) {
  PlanCache cache(*BaselineKernels());
  const auto used = Decay();
  const std::vector<InputForm> forms(used->program.inputs.size());
  const auto kept = cache.Get(used, forms, {});
  const std::weak_ptr<const Plan> unused = cache.Get(Decay(), forms, {});
  ASSERT_FALSE(unused.expired());
  for (int i = 0; i < 64; ++i) {
    cache.Get(Decay(), forms, {});
    EXPECT_EQ(cache.Get(used, forms, {}), kept);
  }
  EXPECT_TRUE(unused.expired());
}

TEST(PlanCache, RunsOfOneExecutorThatShareAPlanHaveTheirOwnNumbers) {
  const std::shared_ptr<Executor> executor = MakeCpuExecutor();
  const auto program = Decay();
  for (const double x : {1.0, 3.0, 1.0}) {
    Work work = tests::WorkOf(*program, 4, 3);
    work.batch.program = program;
    tests::Bind(work, InputKind::kState, "x", {tests::Doubles({x}, {}), false, false});
    const auto found = equality::Observe(executor, work);
    const auto fresh = equality::Observe(MakeCpuExecutor(), work);
    ASSERT_TRUE(found.ok()) << found.status();
    const auto difference = equality::FirstDifference(*found, *fresh);
    EXPECT_FALSE(difference) << *difference;
  }
}

}  // namespace
}  // namespace simgrad::sim::cpu
