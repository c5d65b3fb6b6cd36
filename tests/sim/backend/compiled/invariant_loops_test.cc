// Loops that run once for the steps of a group (plan/invariants.h) give the bits and the counts of
// the reference, whatever is sent for each step or for each instance, and however the steps are cut.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sim/plan/make_plan.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 37;
constexpr int64_t kSteps = 9;
constexpr int64_t kSize = 6;

// x[t+1] = tanh(x (w s + wᵀ) + x d), with matrices `w` and `d` and a number `s`.
Program Network() {
  Builder b("network");
  const Var x = b.State("x", {1, kSize});
  const Var w = b.Param("w", {kSize, kSize});
  const Var d = b.Data("d", {kSize, kSize});
  const Var s = b.Data("s", {});
  const Var scaled =
      w * b.Broadcast(s, {kSize, kSize}, {}) + b.Do(OpCode::kTranspose, {w}, {.dims = {1, 0}});
  const Var next =
      b.Apply(OpCode::kTanh, {b.Do(OpCode::kMatmul, {x, scaled}) + b.Do(OpCode::kMatmul, {x, d})});
  b.SetNext({next});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]);
  });
  return *b.Finish();
}

// Numbers for `shape`, for each instance or step where that is asked. Where `tiny`, one of them
// underflows in f32 and in narrower formats.
Binding Numbers(const Shape& shape, bool per_instance, bool per_step, bool tiny) {
  Shape whole = shape;
  if (per_step) whole.insert(whole.begin(), kSteps);
  if (per_instance) whole.insert(whole.begin(), kInstances);
  int64_t count = 1;
  for (int64_t n : whole) count *= n;
  std::vector<double> values;
  for (int64_t k = 0; k < count; ++k)
    values.push_back(0.3 * std::sin(0.7 * static_cast<double>(k + 1)));
  if (tiny) values[static_cast<size_t>(count / 2)] = 1e-42;
  return {tests::Doubles(values, whole), per_instance, per_step};
}

struct Sent {
  bool data_per_step, data_per_instance, number_per_step, weights_per_instance, tiny;
};

Work WorkOf(const Sent& sent, const std::string& preset, precision::NonFinite nonfinite) {
  precision::PolicySpec policy;
  policy.preset = preset;
  policy.nonfinite = nonfinite;
  auto program = tests::LowerForGradient(Network(), tests::PolicyOf(policy), "end");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, kSteps);
  work.options.recording = Recording::kSummary;
  const Shape matrix = {kSize, kSize};
  tests::Bind(work, InputKind::kState, "x", Numbers({1, kSize}, true, false, false));
  tests::Bind(work, InputKind::kParam, "w",
              Numbers(matrix, sent.weights_per_instance, false, sent.tiny));
  tests::Bind(work, InputKind::kData, "d",
              Numbers(matrix, sent.data_per_instance, sent.data_per_step, sent.tiny));
  tests::Bind(work, InputKind::kData, "s", Numbers({}, false, sent.number_per_step, false));
  return work;
}

void ExpectReference(const Work& work, const std::string& name) {
  const auto expected = equality::Observe(MakeReferenceExecutor(), work);
  const auto found = equality::Observe(MakeCpuExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(found.ok()) << found.status();
  const auto difference = equality::FirstDifference(*found, *expected);
  EXPECT_FALSE(difference) << name << ": " << *difference;
}

std::string NameOf(const Sent& sent, const std::string& preset, int64_t chunk, int64_t interval) {
  std::string name =
      preset + ", chunk " + std::to_string(chunk) + ", interval " + std::to_string(interval);
  if (sent.data_per_step) name += ", d per step";
  if (sent.data_per_instance) name += ", d per instance";
  if (sent.number_per_step) name += ", s per step";
  if (sent.weights_per_instance) name += ", w per instance";
  if (sent.tiny) name += ", tiny";
  return name;
}

TEST(InvariantLoops, HaveTheBitsOfTheReferenceWhateverIsSent) {
  for (const std::string preset : {"f32", "bf16_safe"}) {
    for (int choice = 0; choice < 32; choice += kSanitized ? 11 : 1) {
      const Sent sent = {(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0, (choice & 8) != 0,
                         (choice & 16) != 0};
      Work work = WorkOf(sent, preset, precision::NonFinite::kReport);
      for (const auto& [chunk, interval] :
           {std::pair<int64_t, int64_t>{1, 1}, {4, 3}, {kSteps, kSteps}}) {
        work.chunk_steps = chunk;
        work.checkpoint_interval = interval;
        ExpectReference(work, NameOf(sent, preset, chunk, interval));
      }
    }
  }
}

// The counts of a weight that underflows are those of every step, for the instances that still run.
TEST(InvariantLoops, CountRangesForWhoeverStillRuns) {
  for (const bool data_per_step : {false, true}) {
    const Sent sent = {data_per_step, true, false, false, true};
    Work work = WorkOf(sent, "f32", precision::NonFinite::kStop);
    Binding d = Numbers({kSize, kSize}, true, true, true);
    // Instance 5 stops at step 4.
    d.tensor.Set(((5 * kSteps) + 4) * kSize * kSize, std::numeric_limits<double>::infinity());
    tests::Bind(work, InputKind::kData, "d", d);
    for (const int64_t chunk : {int64_t{1}, int64_t{4}, kSteps}) {
      work.chunk_steps = chunk;
      ExpectReference(work, "stop, chunk " + std::to_string(chunk));
    }
  }
}

// Instances stop in the forward pass, and their lanes take no part in replays and reversals.
TEST(InvariantLoops, HoldWhereInstancesStopped) {
  for (const bool weights_per_instance : {false, true}) {
    const Sent sent = {true, true, false, weights_per_instance, false};
    Work work = WorkOf(sent, "bf16_safe", precision::NonFinite::kStop);
    Binding d = Numbers({kSize, kSize}, true, true, false);
    for (const auto& [instance, step] :
         {std::pair<int64_t, int64_t>{5, 4}, {6, 2}, {7, 4}, {20, 0}, {36, 7}}) {
      d.tensor.Set((instance * kSteps + step) * kSize * kSize,
                   std::numeric_limits<double>::infinity());
    }
    tests::Bind(work, InputKind::kData, "d", d);
    for (const auto& [chunk, interval] :
         {std::pair<int64_t, int64_t>{1, 1}, {4, 3}, {kSteps, kSteps}}) {
      work.chunk_steps = chunk;
      work.checkpoint_interval = interval;
      ExpectReference(work, NameOf(sent, "stop", chunk, interval));
    }
  }
}

// Otherwise the tests above would say nothing.
TEST(InvariantLoops, AreThere) {
  const Work work = WorkOf({}, "f32", precision::NonFinite::kReport);
  const plan::Plan plan = plan::PlacedPlan(*work.batch.program, {.ranges = true},
                                           std::vector<bool>(work.batch.inputs.size(), false), {});
  EXPECT_GT(plan.step.kept, 0);
  EXPECT_GT(plan.reverse.kept, 0);
}

}  // namespace
}  // namespace simgrad::sim
