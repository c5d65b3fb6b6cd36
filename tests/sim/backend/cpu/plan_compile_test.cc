// Compiling a plan of a large program: how long it takes at most, and that it can be stopped.
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "sim/backend/cpu/cpu_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using sim::Builder;
using sim::OpCode;
using sim::Var;
using sim::Vars;

// Scalars and operations of every kind that the compiler joins with their readers, next to them and
// far away.
Var Mixed(Builder& b, Var x, Var k, int operations) {
  Vars far;
  const Var zero = b.Literal(0.0);
  for (int i = 0; i < operations; i += 9) {
    const Var product = b.Apply(OpCode::kMul, {x, k});
    far.push_back(b.Apply(OpCode::kNeg, {product}));
    const Var positive = b.Apply(OpCode::kMax, {product, zero});
    far.push_back(b.Apply(OpCode::kMul, {positive, k}));
    const Var largest = b.Apply(OpCode::kMax, {x, positive});
    x = b.Apply(OpCode::kSub, {largest, b.Apply(OpCode::kTanh, {product})});
  }
  for (const Var& y : far) x = b.Apply(OpCode::kAdd, {x, y});
  return x;
}

sim::Work WorkOf(const sim::Program& world) {
  precision::PolicySpec safe;
  safe.preset = "f16_safe";  // with casts
  auto program = tests::LowerForGradient(world, tests::PolicyOf(safe), "sum");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = tests::WorkOf(*std::move(program), 1, 1);
  work.options.threads = 1;
  tests::Bind(work, sim::InputKind::kState, "x", tests::Shared({0.25}, {}));
  return work;
}

sim::Program Chain(int operations) {
  Builder b("chain");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  b.SetNext({Mixed(b, x, k, operations)});
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  return *std::move(world);
}

// Loops whose regions read values from around them, and one whose carried values go round.
sim::Program Captures(int loops, int carried) {
  Builder b("captures");
  const Var x = b.State("x", {});
  const Var k = b.Param("k", {}, 0.5);
  Vars around;
  for (int i = 0; i < 8; ++i) around.push_back(b.Apply(OpCode::kSin, {i == 0 ? x : around.back()}));
  Var y = x;
  for (int i = 0; i < loops; ++i) {
    y = b.For(2, {y}, [&](Var, const Vars& now) -> Vars {
      Var z = now[0];
      for (const Var& value : around) z = b.Apply(OpCode::kMul, {z, value});
      return {z};
    })[0];
  }
  Vars shifted(static_cast<size_t>(carried), y);
  shifted = b.For(2, shifted, [&](Var, const Vars& now) {
    Vars next(now.begin() + 1, now.end());
    next.push_back(b.Apply(OpCode::kMul, {now[0], k}));
    return next;
  });
  b.SetNext({shifted[0]});
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars&) { return states[0]; });
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  return *std::move(world);
}

// What the executor takes of the processor for both plans and a step there and back.
double SecondsOf(sim::Work work, int64_t* looks) {
  work.options.stop = [looks] { return ++*looks < 0; };
  sim::Observer nobody;
  const std::clock_t start = std::clock();
  const auto result = sim::Engine(sim::MakeCpuExecutor()).Execute(std::move(work), nobody);
  EXPECT_TRUE(result.ok()) << result.status();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST(PlanCompile, OfNineteenThousandOperationsAndTheirAdjointTakesLessThanTenSeconds) {
  int64_t looks = 0;
  const double chain = SecondsOf(WorkOf(Chain(19'000)), &looks);
  EXPECT_LT(chain, 10.0);  // a quarter of one
  EXPECT_GT(looks, 100);
  const double captures = SecondsOf(WorkOf(Captures(1000, 500)), &looks);
  EXPECT_LT(captures, 10.0);
  RecordProperty("chain_ms", static_cast<int>(1e3 * chain));
  RecordProperty("captures_ms", static_cast<int>(1e3 * captures));
}

TEST(PlanCompile, EndsWhereItIsStopped) {
  sim::Work work = WorkOf(Chain(6'000));
  int64_t looks = 0;
  work.options.stop = [&] { return ++looks >= 10; };
  const auto made = sim::MakeCpuExecutor()->Create(work.batch, work.options);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(looks, 10);
}

}  // namespace
}  // namespace simgrad
