// A halt that never holds changes no bit of a run: costs and observables of values that the step computes, in
// whatever role, and their gradients, with cotangents that are sent for states and observables.
#include <gtest/gtest.h>

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
using sim::OpCode;
using sim::Role;
using sim::RoleScope;
using sim::Var;
using sim::Vars;

constexpr int64_t kInstances = 16;
constexpr int64_t kSteps = 4;

enum class Halt { kNone, kPlain, kError };

// The value of a step that is observed and that the stage cost reads.
Var ValueOf(Builder& b, const std::string& what, const Var& x, const Var& q) {
  if (what == "state") return x;
  if (what == "param") return q;
  if (what == "literal") return b.Literal(0.3);
  if (what == "sum") return x + q;
  if (what == "root") return b.Apply(OpCode::kSqrt, {b.Literal(1.0) + x * x * q});
  if (what == "copy") return b.Reshape(x, {});
  if (what == "call") {
    return b.Call({x, q}, [&](const Vars& args) { return Vars{args[0] * args[1]}; })[0];
  }
  if (what == "branch") {
    const Var is_low = b.Event("low", x, Comparison::kLt, b.Literal(0.2));
    return b.Cond(is_low, {},
                  {[&](const Vars&) { return Vars{x + q}; },
                   [&](const Vars&) { return Vars{x * b.Literal(0.3)}; }})[0];
  }
  if (what == "loop") {
    return b.For(3, {x}, [&](const Var&, const Vars& carried) {
      return Vars{carried[0] * b.Literal(0.7) + q};
    })[0];
  }
  const RoleScope role(b, what == "termination" ? Role::kTermination : Role::kNetwork);
  return x * b.Literal(1.1) + q;
}

const std::vector<std::string> kValues = {"state", "param",       "literal", "sum",
                                          "root",  "copy",        "call",    "branch",
                                          "loop",  "termination", "network"};

sim::Program World(const std::string& what, Halt halt) {
  Builder b("halted");
  const Var x = b.State("x", {});
  const Var q = b.Param("q", {}, 0.1);
  const Var y = ValueOf(b, what, x, q);
  const Var z = x * b.Literal(0.75) + q;
  const Var before = b.State("before", {});
  const Var stays = b.State("stays", {});
  Var near;
  {
    const RoleScope role(b, Role::kObjective);
    near = x * b.Literal(0.7) - stays;
  }
  if (halt != Halt::kNone) {
    b.Halt("never", b.Event("far", x, Comparison::kGt, b.Literal(1e4)), halt == Halt::kError);
  }
  b.SetNext({z, q, stays});
  b.Export("y", y);
  b.Export("z", z);
  b.Export("again", y);
  b.Export("near", near);
  b.AddObjective(
      "J",
      [&] { return b.Literal(1.01) * y * y + z * y + x + q * before * q + near * near * stays; },
      [&](const Vars& last, const Vars&) { return last[0] * last[1] + last[2]; });
  const absl::StatusOr<sim::Program> program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *program;
}

class Exports : public sim::Observer {
 public:
  void OnForward(const sim::ForwardChunk& chunk) override {
    for (const sim::Tensor& exported : chunk.exports) {
      text.append(std::to_string(static_cast<int>(exported.dtype)));
      text.append(exported.bytes.begin(), exported.bytes.end());
    }
  }
  std::string text;
};

// Numbers that no two steps or instances share.
std::vector<double> Sent(int64_t steps, double share) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < kInstances * steps; ++i) {
    numbers.push_back(share * (1.0 + 0.37 * static_cast<double>(i % 11)));
  }
  return numbers;
}

// Formats and bits of observables, and bits of values and gradients.
std::string RunOf(const std::string& what, Halt halt, const precision::Policy& policy) {
  const sim::Program world = World(what, halt);
  sim::AdjointSpec spec;
  spec.objective = "J";
  for (const sim::Input& input : world.inputs) {
    spec.wanted.push_back(sim::IsDifferentiable(world, input));
  }
  spec.final_state = {true, false, false};
  spec.trajectory_state = {true, false, true};
  spec.trajectory_export = {true, true, true, true};
  auto program = sim::Lower(world, policy, "J", spec);
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  work.options.record_exports = {0, 1, 2, 3};
  sim::Cotangents& sent = work.batch.cotangents;
  sent.final_state = {Sent(1, 0.3), {}, {}};
  sent.trajectory_state = {Sent(kSteps + 1, 0.7), {}, Sent(kSteps + 1, 0.11)};
  for (const double share : {0.21, -0.33, 0.57, 0.13}) {
    sent.trajectory_export.push_back(Sent(kSteps, share));
  }
  const size_t states = work.batch.program->program.InputsOf(InputKind::kState).size();
  sent.final_state.resize(states);
  sent.trajectory_state.resize(states);
  std::vector<double> x;
  for (int64_t i = 0; i < kInstances; ++i) x.push_back(-1.1 + 0.1521 * static_cast<double>(i));
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(x, {kInstances}), true, false});
  tests::Bind(work, InputKind::kState, "before", tests::Shared({0.4}, {}));
  tests::Bind(work, InputKind::kState, "stays", tests::Shared({0.3}, {}));
  Exports exports;
  const absl::StatusOr<sim::WorkResult> result = tests::Execute(std::move(work), exports);
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(exports.text.empty());
  std::string bits = exports.text;
  const auto* values = reinterpret_cast<const char*>(result->values.data());
  bits.append(values, values + sizeof(double) * result->values.size());
  for (const sim::InputGradient& gradient : result->gradients) {
    EXPECT_EQ(gradient.connected, kInstances);
    bits.append(gradient.gradient.bytes.begin(), gradient.gradient.bytes.end());
  }
  EXPECT_EQ(result->gradients.size(), 4u);
  return bits;
}

TEST(HaltedValues, AreThoseOfTheSameStepWithoutAHalt) {
  std::vector<std::string> presets = {"f32",      "bf16_safe",   "f64",
                                      "f16_safe", "bf16_unsafe", "f16_unsafe"};
  if (kSanitized) presets.resize(2);
  for (const std::string& preset : presets) {
    const precision::Policy policy = tests::PolicyOf({.preset = preset});
    for (const std::string& what : kValues) {
      const std::string alone = RunOf(what, Halt::kNone, policy);
      for (const Halt halt : {Halt::kPlain, Halt::kError}) {
        EXPECT_EQ(RunOf(what, halt, policy) == alone, true)
            << what << " " << preset << (halt == Halt::kError ? ", an error" : "");
      }
    }
  }
}

// Formats that no preset has: the adjoint is narrower than the step, or wider.
TEST(HaltedValues, HaveTheFormatsOfTheirOwnRoles) {
  std::vector<std::pair<Role, sim::Format>> formats = {
      {Role::kState, sim::Format::kBf16},    {Role::kDynamics, sim::Format::kF64},
      {Role::kObjective, sim::Format::kF64}, {Role::kAdjoint, sim::Format::kBf16},
      {Role::kAdjoint, sim::Format::kF64},   {Role::kTermination, sim::Format::kF64},
      {Role::kNetwork, sim::Format::kF16}};
  if (kSanitized) formats.resize(2);
  for (const auto& [role, format] : formats) {
    precision::Policy policy = tests::PolicyOf({.preset = "f32"});
    policy.roles[static_cast<size_t>(role)].format = format;
    for (const std::string& what : kValues) {
      EXPECT_EQ(RunOf(what, Halt::kPlain, policy) == RunOf(what, Halt::kNone, policy), true)
          << what << " " << static_cast<int>(role) << " " << static_cast<int>(format);
    }
  }
}

}  // namespace
}  // namespace simgrad
