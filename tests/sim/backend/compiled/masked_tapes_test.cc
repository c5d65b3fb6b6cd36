// A number that the format of tapes cannot hold makes an instance non-finite where the adjoint reads it,
// and nowhere else: also where what reads it is an operation on matrices, or divides by it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 3;
constexpr double kLarge = 1e5;  // beyond f16

Var ReaderOf(Builder& b, const std::string& reader, const Var& x, const Var& k) {
  if (reader == "mul") return x * k;
  if (reader == "div") return k / x;
  if (reader == "norm2") {
    return b.Broadcast(b.Reduce(OpCode::kNorm2, b.Reshape(x, {2})), {2, 1}, {}) * k;
  }
  const Var matrix = b.Do(OpCode::kMatmul, {k, b.LiteralArray({1.0, 0.5}, {1, 2})});
  if (reader == "matmul") return b.Do(OpCode::kMatmul, {matrix, x});
  const Var lower = b.LiteralArray({1.0, 0.0, 0.5, 1.0}, {2, 2});
  return b.Do(OpCode::kTriangularSolve, {lower * matrix, x});
}

// The reader's result where x is below `bound`, else x; under a mask, or in a branch.
Work WorkOf(const std::string& reader, double bound, bool branch) {
  Builder b("masked");
  const Var x = b.State("x", {2, 1});
  const Var k = b.Param("k", {2, 1}, 1.5);
  const Var low = b.Event("low", x, Comparison::kLt, b.Literal(bound, {2, 1}));
  if (branch) {
    const Var all = b.Reduce(OpCode::kAll, low);
    const auto taken = [&](const Vars&) { return Vars{ReaderOf(b, reader, x, k)}; };
    const auto other = [&](const Vars&) { return Vars{x * b.Literal(1.0, {2, 1})}; };
    b.SetNext({b.Cond(all, {}, {other, taken})[0]});
  } else {
    b.SetNext({Select(low, ReaderOf(b, reader, x, k), x)});
  }
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  const absl::StatusOr<Program> world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  precision::PolicySpec spec{.preset = "f32"};
  spec.roles = {{"tape", {.format = precision::Format::kF16}}};
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(spec), "end");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, 1);
  tests::Bind(work, InputKind::kState, "x",
              {tests::Doubles({1, 2, kLarge, kLarge, 3, 4}, {kInstances, 2, 1}), true, false});
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({1.5, 2.0}, {2, 1}));
  return work;
}

TEST(MaskedTapes, MakeAnInstanceNonFiniteWhereTheyAreReadAndNowhereElse) {
  for (const std::string reader : {"mul", "div", "norm2", "matmul", "triangular_solve"}) {
    for (const bool branch : {false, true}) {
      for (const bool reads : {false, true}) {
        const Work work = WorkOf(reader, reads ? 10 * kLarge : kLarge / 2, branch);
        const auto expected = equality::Observe(MakeReferenceExecutor(), work);
        const auto found = equality::Observe(MakeCpuExecutor(), work);
        ASSERT_TRUE(expected.ok()) << expected.status();
        ASSERT_TRUE(found.ok()) << found.status();
        const std::string what = reader + (branch ? " in a branch" : "") + (reads ? ", read" : "");
        const auto difference = equality::FirstDifference(*found, *expected);
        EXPECT_FALSE(difference) << what << ": " << *difference;
        const std::vector<InstanceHealth>& health = expected->result.health;
        EXPECT_TRUE(health[0].ok && health[2].ok) << what;
        EXPECT_EQ(health[1].ok, !reads) << what;
      }
    }
  }
}

}  // namespace
}  // namespace simgrad::sim
