// Counts of compiled code hold more than 32 bits, with a lane and with several.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim::compiled {
namespace {

using tests::Bind;

// A splat is computed once and counted for each element.
constexpr int64_t kElements = int64_t{1} << 20;
constexpr int64_t kTurns = 5000;
constexpr uint64_t kOfOneStep = uint64_t{kElements} * kTurns;  // above 2^32

// Each turn adds 0.01 to 4, kElements times, and rounds 2^-20 to f16 as often.
NumericalProgram Lowered() {
  Builder b("counts");
  const Var x = b.State("x", {});
  const Var v = b.State("v", {});
  const Vars next = b.For(kTurns, {x, v}, [&](Var, const Vars& now) {
    const Shape wide = {kElements};
    const auto splat = [&](Var one) { return b.Broadcast(one * b.Literal(1.0), wide, {}); };
    const Var sum = splat(now[0]) + b.Literal(0.01, wide);
    const Var tiny = b.Cast(splat(now[1]), Format::kF16, Overflow::kIeee);
    const auto first = [&](Var row) { return b.Reshape(b.Slice(row, {0}, {1}), {}); };
    return Vars{first(sum), first(tiny)};
  });
  b.SetNext(next);
  precision::PolicySpec policy{.preset = "f32"};
  policy.roles.push_back({"dynamics", {.format = Format::kBf16}});
  auto lowered = Lower(*b.Finish(), tests::PolicyOf(policy), "", std::nullopt);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return *std::move(lowered);
}

TEST(WideCounts, OfASplatInALoopAreWhole) {
  const NumericalProgram program = Lowered();
  for (const Mapping mapping : {Mapping::kElements, Mapping::kLanes}) {
    const std::shared_ptr<Executor> executor =
        MakeCompiledExecutor(KernelOptions{.effort = Effort::kQuick, .mapping = mapping});
    Work work = tests::WorkOf(program, 1, 2);
    work.options.recording = Recording::kSummary;
    work.options.stride = 1;
    Bind(work, InputKind::kState, "x", tests::Shared({4.0}, {}));
    Bind(work, InputKind::kState, "v", tests::Shared({0x1p-20}, {}));
    tests::JoinedDiagnostics joined;
    const auto result = Engine(executor).Execute(std::move(work), joined);
    ASSERT_TRUE(result.ok()) << result.status();
    const StepDiagnostics& seen = joined.diagnostics;
    ASSERT_EQ(seen.additions.size(), 1u);
    EXPECT_EQ(seen.additions[0].additions, 2 * kOfOneStep);
    EXPECT_EQ(seen.additions[0].absorbed, 2 * kOfOneStep);
    uint64_t underflows = 0;
    for (const uint64_t count : seen.ranges.underflows) underflows += count;
    EXPECT_EQ(underflows, 2 * kOfOneStep);
  }
}

}  // namespace
}  // namespace simgrad::sim::compiled
