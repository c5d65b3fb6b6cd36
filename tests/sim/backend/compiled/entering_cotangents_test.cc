// A seed or a cotangent beyond the range of its format enters infinite, by no operation. The first
// operation that reads it is where the instance becomes non-finite, on every executor.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 5;
constexpr int64_t kSteps = 4;

// Steps whose reverse cannot make a finite cotangent infinite.
Program World(const std::string& step) {
  Builder b("enters");
  const Var x = b.State("x", {2});
  const Var k = b.Param("k", {}, 1.0);
  const auto negated = [&](const Var& of) { return b.Apply(OpCode::kNeg, {of}); };
  if (step == "neg") b.SetNext({negated(x)});
  if (step == "keep") b.SetNext({x});
  if (step == "loop") {
    b.SetNext({b.For(
        2, {x}, [&](const Var&, const Vars& carried) { return Vars{negated(carried[0])}; })[0]});
  }
  if (step == "no turn") {
    b.SetNext({b.For(
        0, {x}, [&](const Var&, const Vars& carried) { return Vars{negated(carried[0])}; })[0]});
  }
  if (step == "product") b.SetNext({x * b.Broadcast(k, {2}, {})});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  b.AddObjective("first", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reshape(b.Slice(states[0], {0}, {1}), {});
  });
  const absl::StatusOr<Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

// `sent`: of the final state, beside the seed.
Work WorkOf(const std::string& step, const std::string& objective,
            const precision::PolicySpec& spec, double loss_scale, double sent) {
  const Program world = World(step);
  AdjointSpec adjoint;
  adjoint.objective = objective;
  for (const Input& input : world.inputs) {
    adjoint.wanted.push_back(IsDifferentiable(world, input));
  }
  adjoint.final_state = {sent != 0.0};
  adjoint.trajectory_state = {false};
  precision::PolicySpec scaled = spec;
  scaled.loss_scale = loss_scale;
  auto program = Lower(world, tests::PolicyOf(scaled), objective, adjoint);
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  work.batch.cotangents.final_state = {{}};
  if (sent != 0.0) work.batch.cotangents.final_state = {std::vector<double>(2 * kInstances, sent)};
  tests::Bind(work, InputKind::kState, "x", tests::Shared({1.0, 2.0}, {2}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({0.5}, {}));
  return work;
}

precision::PolicySpec InF16(std::vector<std::string> roles) {
  precision::PolicySpec spec{.preset = "f32"};
  for (std::string& role : roles) {
    spec.roles.push_back({std::move(role), {.format = precision::Format::kF16}});
  }
  return spec;
}

TEST(EnteringCotangents, AreSeenWhereTheReferenceSeesThem) {
  int met = 0;
  for (const std::string step : {"neg", "keep", "loop", "no turn", "product"}) {
    for (const std::string objective : {"end", "first"}) {
      for (const auto& spec : {InF16({"objective"}), InF16({"adjoint", "tape"}),
                               InF16({"objective", "adjoint", "tape"})}) {
        for (const auto& [scale, sent] :
             {std::pair{0x1p17, 0.0}, std::pair{1.0, 1e6}, std::pair{1.0, 1.0}}) {
          const Work work = WorkOf(step, objective, spec, scale, sent);
          const auto expected = equality::Observe(MakeReferenceExecutor(), work);
          const auto found = equality::Observe(MakeCpuExecutor(), work);
          ASSERT_TRUE(expected.ok()) << expected.status();
          ASSERT_TRUE(found.ok()) << found.status();
          const auto difference = equality::FirstDifference(*found, *expected);
          EXPECT_FALSE(difference)
              << step << ", " << objective << ", " << spec.roles[0].first << ", scale " << scale
              << ", sent " << sent << ": " << *difference;
          met += expected->result.health[0].ok ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(met, 20);
}

}  // namespace
}  // namespace simgrad::sim
