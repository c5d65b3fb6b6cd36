// What a chunk of steps starts with has the shapes of what will be recorded.

#include "sim/backend/empty_chunk.h"

#include <gtest/gtest.h>

#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::sim {
namespace {

// A real and an integer state, an export, a loop and an event.
Work MakeWork(Recording recording) {
  Builder b("chunk");
  const Var x = b.State("x", {3});
  const Var n = b.State("n", {}, "", ElementType::kI64);
  WhileOptions options;
  options.site = "loop";
  options.max_iter = 2;
  const LoopResult loop = b.While(
      options, {x}, {},
      [&](const Vars& carried, const Vars&) {
        return LoopTest{b.Reduce(OpCode::kSum, carried[0]), b.Literal(1.0), std::nullopt, {}};
      },
      [&](const Vars& carried, const Vars&, const Vars&) { return carried; });
  const Var low = b.Event("event", x, Comparison::kLt, b.Literal(0.0, {3}));
  b.Export("low", low);
  b.SetNext({loop.carried[0], n});
  const absl::StatusOr<Program> world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = Lower(*world, tests::PolicyOf({.preset = "f32"}), "", std::nullopt);
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 4, 10);
  work.options.recording = recording;
  work.options.record_states = {0, 1};
  work.options.record_exports = {0};
  return work;
}

TEST(EmptyChunk, HasTrajectoriesInTheFormatsOfTheirValues) {
  const Work work = MakeWork(Recording::kNone);
  const ForwardChunk chunk = EmptyChunk(work.batch, work.options, 1, 2, 5);
  ASSERT_EQ(chunk.states.size(), 2u);
  EXPECT_EQ(chunk.states[0].shape, (Shape{4, 5, 3}));
  EXPECT_EQ(chunk.states[0].dtype, DType::kF32);
  EXPECT_EQ(chunk.states[1].shape, (Shape{4, 5}));
  EXPECT_EQ(chunk.states[1].dtype, DType::kI64);
  ASSERT_EQ(chunk.exports.size(), 1u);
  EXPECT_EQ(chunk.exports[0].shape, (Shape{4, 5, 3}));
  EXPECT_EQ(chunk.exports[0].dtype, DType::kBool);
  EXPECT_EQ(chunk.diagnostics.steps, 0);
  EXPECT_TRUE(chunk.instance_sites.empty());
}

TEST(EmptyChunk, HasAColumnForEverySiteAndEverySampledStep) {
  const Work work = MakeWork(Recording::kSummary);
  const ForwardChunk chunk = EmptyChunk(work.batch, work.options, 2, 3, 7);
  ASSERT_EQ(chunk.diagnostics.terminations.size(), 1u);
  EXPECT_EQ(chunk.diagnostics.terminations[0].size(), 7u);
  ASSERT_EQ(chunk.diagnostics.events.size(), 1u);
  EXPECT_EQ(chunk.diagnostics.events[0].size(), 7u);
  EXPECT_EQ(chunk.diagnostics.sampled_steps, (std::vector<int64_t>{3, 5, 7, 9}));
  ASSERT_EQ(chunk.diagnostics.states.size(), 1u);  // the real one
  EXPECT_EQ(chunk.diagnostics.states[0].size(), 4u);
  EXPECT_TRUE(chunk.instance_sites.empty());
}

TEST(EmptyChunk, HasACellForEveryInstanceAtTheLevelOfInstances) {
  const Work work = MakeWork(Recording::kInstances);
  const ForwardChunk chunk = EmptyChunk(work.batch, work.options, 1, 0, 5);
  ASSERT_EQ(chunk.instance_sites.size(), 1u);
  EXPECT_EQ(chunk.instance_sites[0].iterations, std::vector<uint32_t>(20, 0));
  EXPECT_EQ(chunk.instance_sites[0].reasons, std::vector<uint8_t>(20, 0));
  EXPECT_EQ(chunk.instance_sites[0].value_counts, std::vector<uint32_t>(20, 0));
  EXPECT_EQ(chunk.instance_sites[0].values.size(), 4u);
}

}  // namespace
}  // namespace simgrad::sim
