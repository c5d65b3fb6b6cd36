// A cost in a branch or a loop, and behind a halt, has the gradient that it has alone, to the bit:
// cotangents are summed in role objective wherever its operations stand.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using sim::Builder;
using sim::Comparison;
using sim::InputKind;
using sim::Var;
using sim::Vars;

constexpr int64_t kInstances = 64;
constexpr int64_t kSteps = 3;

// Under the loss scale of f16 some contributions to the cotangent of x are beyond its range, and their sum is
// not.
Var Cost(Builder& b, const Var& x, const Var& k) {
  const Var linear = x * b.Literal(3.0) - x * b.Literal(2.5);
  const Var length = b.Apply(sim::OpCode::kSqrt, {b.Literal(1.0) + x * x});
  return linear + x * k + b.Literal(0.05) * x * length;
}

// `n` is less than 10.
Var CostAt(Builder& b, const std::string& where, const Var& x, const Var& n, const Var& k) {
  if (where == "branch" || where == "branch of two") {
    const Var low = b.Apply(sim::OpCode::kLt, {n, b.Integer(10, sim::ElementType::kI32, {})});
    const auto other = [&](const Vars&) { return Vars{where == "branch" ? x : x * k}; };
    return b.Cond(low, {}, {other, [&](const Vars&) { return Vars{Cost(b, x, k)}; }})[0];
  }
  if (where == "loop") {
    return b.For(1, {b.Literal(0.0)},
                 [&](const Var&, const Vars&) { return Vars{Cost(b, x, k)}; })[0];
  }
  if (where == "loop that carries") {
    return b.For(1, {x},
                 [&](const Var&, const Vars& carried) { return Vars{Cost(b, carried[0], k)}; })[0];
  }
  if (where == "loop in a branch") {
    const Var low = b.Apply(sim::OpCode::kLt, {n, b.Integer(10, sim::ElementType::kI32, {})});
    const auto other = [&](const Vars&) { return Vars{x}; };
    return b.Cond(low, {},
                  {other, [&](const Vars&) { return Vars{CostAt(b, "loop", x, n, k)}; }})[0];
  }
  if (where == "branch in a loop") {
    return b.For(1, {b.Literal(0.0)},
                 [&](const Var&, const Vars&) { return Vars{CostAt(b, "branch", x, n, k)}; })[0];
  }
  if (where == "scan") {
    return b.Scan(1, {b.Literal(0.0)}, {b.Reshape(x, {1})}, false,
                  [&](const Var&, const Vars&, const Vars& scanned) {
                    return Vars{Cost(b, scanned[0], k)};
                  })[0];
  }
  if (where == "call") {
    return b.Call({x, k}, [&](const Vars& args) { return Vars{Cost(b, args[0], args[1])}; })[0];
  }
  return Cost(b, x, k);
}

const std::vector<std::string> kPlaces = {"halt",
                                          "halt with an error",
                                          "branch",
                                          "branch of two",
                                          "loop",
                                          "loop that carries",
                                          "loop in a branch",
                                          "branch in a loop",
                                          "scan",
                                          "call"};

// What the cost reads.
enum class Reads { kState, kNextState, kLastState };

sim::Program World(const std::string& where, Reads reads) {
  Builder b("nested");
  const Var x = b.State("x", {});
  const Var n = b.State("n", {}, "", sim::ElementType::kI32);
  const Var k = b.Param("k", {}, 0.1);
  if (where == "halt" || where == "halt with an error") {
    const Var far = b.Event("far", x, Comparison::kGt, b.Literal(1e4));
    b.Halt("never", far, where == "halt with an error");
  }
  const Var next = x * b.Literal(0.5) + k;
  b.SetNext({next, n});
  b.Export("next", next, false);
  if (reads != Reads::kLastState) {
    const Var read = reads == Reads::kState ? x : next;
    b.AddObjective(
        "J", [&] { return CostAt(b, where, read, n, k); }, nullptr);
  } else {
    b.AddObjective("J", nullptr, [&](const Vars& states, const Vars&) {
      return CostAt(b, where, states[0], states[1], k);
    });
  }
  const absl::StatusOr<sim::Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

// The bits of the gradients of x and k.
std::string Gradients(const std::string& where, Reads reads, const precision::Policy& policy) {
  auto program = tests::LowerForGradient(World(where, reads), policy, "J");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  std::vector<double> x;
  for (int64_t i = 0; i < kInstances; ++i) x.push_back(-1.5 + 0.0507 * static_cast<double>(i));
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(x, {kInstances}), true, false});
  tests::Bind(work, InputKind::kState, "n", tests::Shared({3.0}, {}));
  sim::Observer nobody;
  const absl::StatusOr<sim::WorkResult> result = tests::Execute(std::move(work), nobody);
  EXPECT_TRUE(result.ok()) << result.status();
  std::string bits;
  for (const sim::InputGradient& gradient : result->gradients) {
    bits.append(gradient.gradient.bytes.begin(), gradient.gradient.bytes.end());
  }
  EXPECT_TRUE(std::all_of(result->health.begin(), result->health.end(),
                          [](const sim::InstanceHealth& health) { return health.ok; }))
      << where;
  return bits;
}

void ExpectTheSameEverywhere(const precision::Policy& policy) {
  for (const Reads reads : {Reads::kState, Reads::kNextState, Reads::kLastState}) {
    const std::string alone = Gradients("alone", reads, policy);
    ASSERT_GT(alone.size(), 0u);
    for (const std::string& where : kPlaces) {
      EXPECT_EQ(Gradients(where, reads, policy) == alone, true)
          << where << " " << static_cast<int>(reads);
    }
  }
}

TEST(NestedObjective, HasTheGradientOfTheSameCostAlone) {
  std::vector<std::string> presets = {"f32",      "bf16_safe",   "f64",
                                      "f16_safe", "bf16_unsafe", "f16_unsafe"};
  if (kSanitized) presets.resize(2);
  for (const std::string& preset : presets) {
    SCOPED_TRACE(preset);
    ExpectTheSameEverywhere(tests::PolicyOf({.preset = preset}));
  }
}

TEST(NestedObjective, HasThatOfFormatsThatNoPresetHas) {
  std::vector<std::pair<sim::Role, sim::Format>> formats = {
      {sim::Role::kState, sim::Format::kBf16},     {sim::Role::kDynamics, sim::Format::kF64},
      {sim::Role::kObjective, sim::Format::kBf16}, {sim::Role::kObjective, sim::Format::kF64},
      {sim::Role::kAdjoint, sim::Format::kF64},    {sim::Role::kTape, sim::Format::kBf16}};
  if (kSanitized) formats.resize(2);
  for (const auto& [role, format] : formats) {
    SCOPED_TRACE(static_cast<int>(role));
    precision::Policy policy = tests::PolicyOf({.preset = "f32"});
    policy.roles[static_cast<size_t>(role)].format = format;
    ExpectTheSameEverywhere(policy);
  }
}

}  // namespace
}  // namespace simgrad
