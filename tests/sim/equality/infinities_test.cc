// Worlds with infinite literals: what is meant to be infinite is no birth, and what goes wrong beside it
// is one, with the same bits on every executor.
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::equality {
namespace {

using enum OpCode;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Bounds that are partly infinite, a least of masked values, and what `wrong` makes of the bounds.
Program Bounded(bool wrong) {
  Builder b("bounded");
  const Var x = b.State("x", {4});
  const Var least = b.State("least", {});
  const Var low = b.LiteralArray({-kInf, -1.0, -kInf, 0.0}, {4});
  const Var high = b.LiteralArray({kInf, 0.5, 2.0, kInf}, {4});
  const Var clipped = Min(Max(b.Literal(0.75, {4}) * x - b.Literal(0.125, {4}), low), high);
  const Var positive = b.Event("positive", clipped, Comparison::kGt, b.Literal(0.0, {4}));
  const Var masked = Select(positive, clipped, b.Literal(kInf, {4}));
  const Var next = Min(b.Reduce(kReduceMin, masked), least);
  const Var reach = high - (wrong ? high : low);  // inf - inf is NaN
  const Var share = clipped / reach;
  b.Export("share", share);
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars& exports) {
    return b.Reduce(kSum, states[0]) + b.Reduce(kSum, exports[0]);
  });
  b.SetNext({clipped, next});
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  return *world;
}

Work WorkOf(const Program& world, const std::string& preset, bool gradient) {
  auto program =
      tests::LowerForGradient(world, tests::PolicyOf({.preset = preset}), gradient ? "sum" : "");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work;
  work.batch.program = std::make_shared<const NumericalProgram>(*std::move(program));
  work.batch.instances = 21;
  work.batch.steps = 6;
  for (uint64_t i = 0; i < 21; ++i) work.batch.instance_ids.push_back(i);
  work.batch.inputs.resize(world.inputs.size());
  Tensor x = Tensor::Zeros(DType::kF64, {21, 4});
  for (int64_t i = 0; i < 84; ++i) x.Set(i, 0.05 * static_cast<double>(i % 19) - 0.4);
  tests::Bind(work, InputKind::kState, "x", {x, true, false});
  tests::Bind(work, InputKind::kState, "least", tests::Shared({3.0}, {}));
  if (gradient) work.gradient.emplace();
  return work;
}

class InfiniteLiterals : public ::testing::TestWithParam<std::string> {};

TEST_P(InfiniteLiterals, HaveTheBitsOfTheReferenceAndAreNoBirths) {
  for (const bool gradient : {false, true}) {
    const Work work = WorkOf(Bounded(false), GetParam(), gradient);
    const auto expected = Observe(MakeReferenceExecutor(), work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto observed = Observe(MakeCpuExecutor(), work);
    ASSERT_TRUE(observed.ok()) << observed.status();
    const auto difference = FirstDifference(*expected, *observed);
    EXPECT_FALSE(difference) << *difference;
    for (const InstanceHealth& health : expected->result.health) {
      EXPECT_TRUE(health.ok) << health.step;
    }
  }
}

TEST_P(InfiniteLiterals, ANaNThatTheyMakeIsABirthOnEveryExecutor) {
  const Work work = WorkOf(Bounded(true), GetParam(), false);
  const auto expected = Observe(MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto observed = Observe(MakeCpuExecutor(), work);
  ASSERT_TRUE(observed.ok()) << observed.status();
  const auto difference = FirstDifference(*expected, *observed);
  EXPECT_FALSE(difference) << *difference;
  for (const InstanceHealth& health : expected->result.health) EXPECT_FALSE(health.ok);
}

INSTANTIATE_TEST_SUITE_P(Presets, InfiniteLiterals,
                         ::testing::Values("f64", "f32", "bf16_safe", "f16_safe"),
                         [](const auto& preset) { return preset.param; });

}  // namespace
}  // namespace simgrad::sim::equality
