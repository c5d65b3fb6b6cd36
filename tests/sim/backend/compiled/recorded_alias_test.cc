// The adjoint reads values that share the slot of an input: nothing of its own is on the tape.
#include <gtest/gtest.h>

#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 40;
constexpr int64_t kSteps = 5;

Var Frozen(Var x) { return x.builder->Apply(OpCode::kStopGradient, {x}); }

// Factors of products, so that the tape holds them: the names of inputs in other words.
struct Aliases {
  Var state, param, control, data, literal;
  Var Product(Var x) const {
    return x * Frozen(param) + x * Frozen(control) * Frozen(data) - x * Frozen(literal);
  }
};

Program AliasWorld() {
  Builder b("aliases");
  const Var x = b.State("x", {});
  const Aliases a = {x, b.Param("k", {}, 0.25), b.Control("u", {}, 0.5), b.Data("d", {}, 0.125),
                     b.Literal(0.0625)};
  // Literals belong to a region, so every region names its own.
  const auto here = [&](Var state) {
    return Aliases{state, a.param, a.control, a.data, b.Literal(0.0625)};
  };
  b.SetInitial([&] { return Vars{here(x).Product(x * Frozen(x))}; });
  const Vars turned = b.For(2, {x * Frozen(x)}, [&](Var, const Vars& carried) {
    return Vars{here(x).Product(carried[0]) + carried[0] * Frozen(carried[0])};
  });
  const LoopResult shrunk = b.While(
      {.site = "shrink", .max_iter = 9}, {turned[0], a.control}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{b.Apply(OpCode::kAbs, {carried[0] * Frozen(a.control)}),
                        b.Literal(1e-3),
                        std::nullopt,
                        {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) {
        return Vars{0.5 * here(x).Product(carried[0]) + 0.25 * carried[0] * Frozen(a.control),
                    carried[1] * Frozen(carried[1])};
      });
  b.SetNext({shrunk.carried[0] + shrunk.carried[1] + 0.5 * x});
  b.Export("rest", shrunk.carried[0]);
  b.AddObjective(
      "cost", [&] { return here(x).Product(shrunk.carried[0] + x); },
      [&](const Vars& states, const Vars&) {
        return here(states[0]).Product(states[0]) + states[0] * Frozen(states[0]);
      });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

Work AliasWork(bool per_instance, bool per_step) {
  precision::PolicySpec policy;
  policy.preset = "f64";  // casts of inputs are names, too
  auto program = tests::LowerForGradient(AliasWorld(), tests::PolicyOf(policy), "cost");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  Shape shape;
  if (per_instance) shape.push_back(kInstances);
  if (per_step) shape.push_back(kSteps);
  std::vector<double> controls(static_cast<size_t>(ElementCount(shape)));
  for (size_t i = 0; i < controls.size(); ++i) {
    controls[i] = 0.3 + 0.01 * static_cast<double>((7 * i) % 50);
  }
  tests::Bind(work, InputKind::kControl, "u",
              {tests::Doubles(controls, shape), per_instance, per_step});
  std::vector<double> heights;
  for (int64_t i = 0; i < kInstances; ++i) {
    // Some loops run long, so that the others leave them.
    heights.push_back(i % 9 == 0 ? 3.0 : 0.02 * static_cast<double>(i));
  }
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(heights, {kInstances}), true, false});
  return work;
}

TEST(RecordedAlias, GradientsThroughNamesOfInputsAreThoseOfTheReference) {
  for (const bool per_instance : {false, true}) {
    for (const bool per_step : {false, true}) {
      const Work work = AliasWork(per_instance, per_step);
      const auto expected = equality::Observe(MakeReferenceExecutor(), work);
      const auto found = equality::Observe(MakeCpuExecutor(), work);
      ASSERT_TRUE(expected.ok()) << expected.status();
      ASSERT_TRUE(found.ok()) << found.status();
      const auto difference = equality::FirstDifference(*found, *expected);
      EXPECT_FALSE(difference) << *difference << ", control per instance " << per_instance
                               << ", per step " << per_step;
      EXPECT_GT(expected->result.gradients.at(0).connected, 0);
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
