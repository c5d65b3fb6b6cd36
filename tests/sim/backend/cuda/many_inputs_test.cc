// Programs of about as many inputs, exports and sites as a kernel takes: the bits of the reference.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/weights_of_layers.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Mapping;

constexpr int kStates = 90, kParams = 110, kEvents = 200, kExports = 80;

void ExpectBitsOfTheReference(const sim::Work& work) {
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Mapping mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
    SCOPED_TRACE(MappingName(mapping));
    const auto executor = std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
        MakeHostShimDevice(), {.mapping = mapping, .block = 32, .grid = 2, .steps = 3}));
    const auto actual = sim::equality::Observe(executor, work);
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_EQ(sim::equality::FirstDifference(*expected, *actual), std::nullopt);
  }
}

TEST(ManyInputsTest, AGradientHasTheBitsOfTheReference) {
  const sim::Program world = sim::shaped::ManyOfAll(kStates, kParams, kEvents, kExports);
  const auto program = LowerForGradient(world, PolicyOf({.preset = "f32"}), "end");
  ASSERT_TRUE(program.ok()) << program.status();
  ExpectBitsOfTheReference(WorkOfCase(*program, 37, 7));
}

TEST(ManyInputsTest, CotangentsThatAreSentHaveTheBitsOfTheReference) {
  const sim::Program world = sim::shaped::ManyOfAll(kStates, kParams, kEvents, kExports);
  auto wanted = sim::shaped::WantedOf(world, "");
  wanted.trajectory_state.assign(kStates, true);
  wanted.trajectory_export.assign(kExports, true);
  const auto program = Lower(world, PolicyOf({.preset = "f32"}), "", wanted);
  ASSERT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOfCase(*program, 5, 4);
  sim::Cotangents& sent = work.batch.cotangents;
  for (int k = 0; k < kStates; ++k) {
    sent.final_state.push_back(Sines(5, 0.1 + k));
    sent.trajectory_state.push_back(Sines(5 * 5, 0.2 + k));
  }
  for (int k = 0; k < kExports; ++k) sent.trajectory_export.push_back(Sines(5 * 4, 0.3 + k));
  ExpectBitsOfTheReference(work);
}

}  // namespace
}  // namespace simgrad::tests
