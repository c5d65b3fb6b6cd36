// What an answer tells of gradients besides their numbers: how many are zero, and how large the
// others are.
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

using tests::Bind;
using tests::Doubles;

// x[T] = relu(a[0] x) + a[1] * 0, so that a[1] has gradient 0 and a[0] has x or 0.
Program Gated(bool weights) {
  Builder b("gated");
  const Var x = b.State("x", {});
  const Var a = weights ? b.Weights("a", {2}) : b.Param("a", {2});
  const Var unused = b.Param("unused", {});
  const auto part = [&](int64_t k) { return b.Reshape(b.Slice(a, {k}, {1}), {}); };
  b.SetNext({Relu(part(0) * x) + part(1) * b.Literal(0.0)});
  b.Export("unused", unused);
  b.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  return *b.Finish();
}

std::vector<InputGradient> GradientsOf(const std::vector<double>& x, const GradientWork& gradient,
                                       double loss_scale, std::vector<double> weights = {},
                                       precision::Format format = precision::Format::kF32,
                                       bool declared_weights = false) {
  precision::PolicySpec spec{.preset = "f32"};
  spec.loss_scale = loss_scale;
  spec.roles = {{"gradient", {.format = format}}};
  auto lowered = tests::LowerForGradient(Gated(declared_weights), tests::PolicyOf(spec), "end");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  const int64_t n = static_cast<int64_t>(x.size());
  Work work = tests::WorkOf(*std::move(lowered), n, 1);
  work.gradient = gradient;
  work.weights = std::move(weights);
  Bind(work, InputKind::kState, "x", {Doubles(x, {n}), true, false});
  Bind(work, InputKind::kParam, "a", tests::Shared({1.0, 1.0}, {2}));
  Bind(work, InputKind::kParam, "unused", tests::Shared({1.0}, {}));
  Observer observer;
  const auto result = Engine(MakeCpuExecutor()).Execute(std::move(work), observer);
  EXPECT_TRUE(result.ok()) << result.status();
  return result->gradients;
}

const GradientMagnitudes& Of(const std::vector<InputGradient>& gradients, size_t k) {
  return gradients.at(k).magnitudes;
}

TEST(GradientMagnitudes, CountZerosAndTellTheSmallestAndTheLargest) {
  // Inputs: x, a, unused.
  const auto gradients = GradientsOf({-1.0, 0.125, 3.0, -2.0, 0.5}, {}, 1.0);
  EXPECT_EQ(Of(gradients, 1).zero, 2);
  EXPECT_EQ(Of(gradients, 1).smallest, 0.125);
  EXPECT_EQ(Of(gradients, 1).largest, 3.0);
  EXPECT_EQ(Of(gradients, 0).zero, 2);
  EXPECT_EQ(Of(gradients, 0).smallest, 1.0);
  EXPECT_EQ(Of(gradients, 2).zero, 5);
  EXPECT_EQ(Of(gradients, 2).smallest, std::numeric_limits<double>::infinity());
  EXPECT_EQ(Of(gradients, 2).largest, 0.0);
}

TEST(GradientMagnitudes, LeaveOutWeightsAndTheLossScale) {
  const auto gradients = GradientsOf({-1.0, 0.125, 3.0}, {}, 1024.0, {1.0, 100.0, 0.0});
  EXPECT_EQ(Of(gradients, 1).zero, 1);
  EXPECT_EQ(Of(gradients, 1).smallest, 0.125);
  EXPECT_EQ(Of(gradients, 1).largest, 3.0);
}

// Scaled by 1024, 2^-26 is a number of f16; without the scale it is rounded to 0, as the answer is.
TEST(GradientMagnitudes, CountZerosWithoutTheLossScale) {
  for (const bool weights : {false, true}) {
    for (const double scale : {1.0, 1024.0}) {
      const auto gradients =
          GradientsOf({0x1p-26, 0x1p-24, -1.0}, {}, scale, {}, precision::Format::kF16, weights);
      EXPECT_EQ(Of(gradients, 1).zero, 2) << weights << " " << scale;
      EXPECT_EQ(Of(gradients, 1).smallest, 0x1p-24);
      EXPECT_EQ(Of(gradients, 1).largest, 0x1p-24);
    }
  }
}

TEST(GradientMagnitudes, AreOfTheInstancesThatCount) {
  const double infinite = std::numeric_limits<double>::infinity();
  const auto gradients =
      GradientsOf({-1.0, infinite, 3.0}, {.reduction = InstanceReduction::kFiniteOnly}, 1.0);
  EXPECT_EQ(Of(gradients, 1).zero, 1);
  EXPECT_EQ(Of(gradients, 1).smallest, 3.0);
  EXPECT_EQ(Of(gradients, 1).largest, 3.0);
}

}  // namespace
}  // namespace simgrad::sim
