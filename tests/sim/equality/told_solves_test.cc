// What solves of implicit loops tell is the same on every executor, where some instances ran no iteration.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::equality {
namespace {

constexpr int64_t kInstances = 37;
constexpr int64_t kSteps = 3;

// x <- tanh(x A) / 4 + p, from x + s, until the sum of x is below 1; s is a number of the instance.
Program Settling() {
  Builder b("settling");
  const Var x = b.State("x", {1, 3});
  const Var s = b.Param("s", {});
  const Var p = b.Param("p", {1, 3});
  const Var a = b.Param("a", {3, 3});
  WhileOptions options;
  options.site = "loop";
  options.max_iter = 6;
  const LoopResult loop = b.While(
      options, {x + b.Broadcast(s, {1, 3}, {})}, {},
      [&](const Vars& now, const Vars&) {
        return LoopTest{b.Reduce(OpCode::kSum, now[0]), b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& now, const Vars&, const Vars&) {
        const Var moved = b.Do(OpCode::kMatmul, {now[0], a});
        return Vars{b.Apply(OpCode::kTanh, {moved}) * b.Broadcast(b.Literal(0.25), {1, 3}, {}) + p};
      });
  b.SetNext({loop.carried[0]});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
  return *b.Finish();
}

absl::StatusOr<Observed> ObserveBy(std::shared_ptr<Executor> executor, LoopChoice::Solver solver,
                                   const std::string& preset) {
  const Program world = Settling();
  AdjointSpec spec{.objective = "end"};
  for (const Input& input : world.inputs) spec.wanted.push_back(IsDifferentiable(world, input));
  spec.loops = {{.site = "loop",
                 .how = LoopChoice::How::kImplicit,
                 .solver = solver,
                 .tol = 1e-3,
                 .max_iter = 4}};
  auto program = Lower(world, tests::PolicyOf({.preset = preset}), "end", spec);
  if (!program.ok()) return program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  work.options.recording = Recording::kSummary;
  std::vector<double> starts;
  for (int64_t i = 0; i < kInstances; ++i)
    starts.push_back(i % 3 == 0 ? -9.0 : 0.1 * static_cast<double>(i));
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles({0.5, 0.25, 0.5}, {1, 3})});
  tests::Bind(work, InputKind::kParam, "s", {tests::Doubles(starts, {kInstances}), true});
  tests::Bind(work, InputKind::kParam, "p", {tests::Doubles({0.25, 0.125, 0.0}, {1, 3})});
  tests::Bind(work, InputKind::kParam, "a",
              {tests::Doubles({0.5, 0.25, 0, 1, 0.5, -1, 0.125, 0, 0.75}, {3, 3})});
  return Observe(std::move(executor), work);
}

class ToldSolves : public testing::TestWithParam<std::string> {};

TEST_P(ToldSolves, AreTheSameOnEveryExecutor) {
  for (const auto solver : {LoopChoice::Solver::kIteration, LoopChoice::Solver::kGmres}) {
    const auto expected = ObserveBy(MakeReferenceExecutor(), solver, GetParam());
    const auto found = ObserveBy(MakeCpuExecutor(), solver, GetParam());
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(found.ok()) << found.status();
    const auto difference = FirstDifference(*found, *expected);
    EXPECT_FALSE(difference) << *difference;
    ASSERT_EQ(expected->result.adjoint_solves.size(), 1u);
    const int64_t solves = expected->result.adjoint_solves[0].solves;
    EXPECT_GT(solves, kInstances / 2);
    EXPECT_LT(solves, kInstances * kSteps) << "all instances ran an iteration in each step";
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ToldSolves, testing::Values("f64", "f32", "bf16_safe"));

}  // namespace
}  // namespace simgrad::sim::equality
