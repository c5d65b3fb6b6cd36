// A forward pass that was kept on a device is reversed later to the bits of the gradient, without a step of
// it run again; and where it cannot be, it runs again to the same bits.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/engine/kept_run.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/random_case.h"
#include "tests/sim/equality/two_parts.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Device;
using sim::cuda::Mapping;
using sim::equality::DifferenceOfReversal;
using sim::equality::KeepForward;
using sim::equality::ReverseFor;

constexpr int64_t kInstances = 40;
constexpr int64_t kSteps = 12;

// A checkpoint before every step: what is reversed need not run forward to where it begins.
sim::Work GradientWork(size_t world = 0, const std::string& preset = "f32",
                       int64_t steps = kSteps) {
  sim::Work work = WorkOfCase(*LowerCase(WorldCases(3)[world], preset, true), kInstances, steps);
  work.checkpoint_interval = 1;
  return work;
}

sim::Engine EngineOn(std::vector<std::shared_ptr<Device>> devices,
                     const sim::CudaExecutorOptions& options = {}) {
  return sim::Engine(
      std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(std::move(devices), options)));
}

sim::Engine ReferenceEngine() {
  return sim::Engine(std::shared_ptr<sim::Executor>(sim::MakeReferenceExecutor()));
}

std::shared_ptr<const sim::KeptRun> Keep(const sim::Engine& engine, const sim::Work& gradient) {
  auto kept = KeepForward(engine, gradient, gradient.batch.program);
  EXPECT_TRUE(kept.ok()) << kept.status();
  return kept.ok() ? *kept : nullptr;
}

// Where the reversal differs from the gradient on the reference, or nothing.
std::string Difference(const absl::StatusOr<sim::WorkResult>& reversed, const sim::Work& gradient) {
  if (!reversed.ok()) return reversed.status().ToString();
  sim::Observer nobody;
  const auto whole = ReferenceEngine().Execute(gradient, nobody);
  if (!whole.ok()) return whole.status().ToString();
  return DifferenceOfReversal(*whole, *reversed).value_or("");
}

// -1 where there is no result.
int64_t ForwardSteps(const absl::StatusOr<sim::WorkResult>& reversed) {
  return reversed.ok() ? reversed->forward_steps : -1;
}

// The launches of a device by entry point.
class Launches {
 public:
  std::shared_ptr<Device> MakeDevice() const {
    return MakeHostShimDevice({.on_launch = [counted = counted_](const std::string& entry) {
      const std::lock_guard<std::mutex> lock(counted->mutex);
      ++counted->launches[entry];
    }});
  }
  std::map<std::string, int64_t> Taken() {
    const std::lock_guard<std::mutex> lock(counted_->mutex);
    return std::exchange(counted_->launches, {});
  }

 private:
  struct Counted {
    std::mutex mutex;
    std::map<std::string, int64_t> launches;
  };
  std::shared_ptr<Counted> counted_ = std::make_shared<Counted>();
};

TEST(CudaKeptRunTest, AReversalHasTheBitsOfTheGradientAndLaunchesNothingForward) {
  for (const size_t world : {0, 1, 3}) {
    for (const std::string preset : {"f32", "bf16_safe"}) {
      const sim::Work work = GradientWork(world, preset);
      for (const auto mapping : {Mapping::kThreadPerInstance, Mapping::kBlockPerInstance}) {
        SCOPED_TRACE(WorldCases(3)[world].name + ", " + preset + ", " +
                     std::string(sim::cuda::MappingName(mapping)));
        Launches launches;
        const sim::Engine engine = EngineOn({launches.MakeDevice()}, {.mapping = mapping});
        const auto kept = Keep(engine, work);
        ASSERT_NE(kept, nullptr);
        EXPECT_GE(launches.Taken()["simgrad_forward"], kSteps);
        for (int k = 0; k < 2; ++k) {
          const auto reversed = ReverseFor(engine, *kept, work);
          EXPECT_EQ(Difference(reversed, work), "");
          EXPECT_EQ(ForwardSteps(reversed), 0);
          auto launched = launches.Taken();
          EXPECT_EQ(launched["simgrad_adjoint"], kSteps);
          for (const char* forward : {"simgrad_start", "simgrad_forward", "simgrad_finish"}) {
            EXPECT_EQ(launched[forward], 0) << forward;
          }
        }
      }
    }
  }
}

// Kept for all inputs and final states, reversed for what the case asks.
TEST(CudaKeptRunTest, RandomProgramsReversedForAnotherAdjointHaveTheBitsOfTheGradient) {
  constexpr uint64_t kCases = 14;
  const sim::Engine engine = EngineOn({MakeHostShimDevice()});
  int64_t resumed = 0;
  int64_t compared = 0;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    SCOPED_TRACE(seed);
    const auto made = sim::equality::MakeCase(seed);
    if (!made.ok() || !made->work.gradient || !made->asked) continue;
    if (made->work.batch.program->path) continue;
    for (const bool another : {false, true}) {
      const auto program = sim::equality::LowerForAll(*made);
      ASSERT_TRUE(program.ok()) << program.status();
      const auto kept =
          KeepForward(engine, made->work, another ? *program : made->work.batch.program);
      ASSERT_TRUE(kept.ok()) << kept.status();
      const auto reversed = ReverseFor(engine, **kept, made->work);
      EXPECT_EQ(Difference(reversed, made->work), "");
      if (!reversed.ok()) continue;
      EXPECT_TRUE(another || ForwardSteps(reversed) == 0);
      resumed += another && ForwardSteps(reversed) == 0;
      compared += another;
    }
  }
  std::cout << resumed << " of " << compared << " were not run forward again\n";
  EXPECT_GT(compared, static_cast<int64_t>(kCases) / 4);
  EXPECT_GT(2 * resumed, compared);
}

TEST(CudaKeptRunTest, WhatIsKeptIsPinnedMemoryThatIsCountedAndGoesWithIt) {
  // Where the interval is chosen, the budget has room for eight checkpoints until it doubles. Of the four that
  // are dropped then two are used no more.
  constexpr int64_t kManySteps = 260;
  for (const int64_t interval : {0, 1, 5}) {
    sim::Work work = GradientWork(0, "f32", interval == 0 ? kManySteps : kSteps);
    work.checkpoint_interval = interval;
    const auto device = MakeHostShimDevice();
    const int64_t saved =
        (*sim::MakeCudaExecutor(device)->Create(work.batch, work.options))->SavedBytes();
    work.memory_budget_bytes = interval == 0 ? 16 * saved : int64_t{4} << 30;
    const sim::Engine engine = EngineOn({device});
    auto kept = Keep(engine, work);
    ASSERT_NE(kept, nullptr);
    const int64_t states = static_cast<int64_t>(kept->saved.size()) + 1;  // and the end
    EXPECT_GT(states, 1);
    EXPECT_EQ(device->Use().memory_used_bytes, 0);
    EXPECT_EQ(device->Use().pinned_bytes, states * saved);
    EXPECT_GT(kept->bytes, states * saved);
    EXPECT_LT(kept->bytes, (states + 1) * saved + (1 << 20));
    work.memory_budget_bytes = int64_t{4} << 30;
    const auto reversed = ReverseFor(engine, *kept, work);
    EXPECT_EQ(Difference(reversed, work), "");
    EXPECT_EQ(ForwardSteps(reversed), 0);
    EXPECT_EQ(device->Use().memory_used_bytes, 0);
    EXPECT_EQ(device->Use().pinned_bytes, states * saved);
    kept.reset();
    EXPECT_EQ(device->Use().pinned_bytes, 0);
    EXPECT_EQ(device->runs, 0);
  }
}

TEST(CudaKeptRunTest, ABudgetThatIsTooSmallIsAStatusAndASmallOneTakesMoreSteps) {
  sim::Work work = GradientWork();
  work.checkpoint_interval = 0;
  const sim::Engine engine = EngineOn({MakeHostShimDevice()});
  const int64_t saved =
      (*sim::MakeCudaExecutor(MakeHostShimDevice())->Create(work.batch, work.options))
          ->SavedBytes();
  work.memory_budget_bytes = saved - 1;
  EXPECT_EQ(KeepForward(engine, work, work.batch.program).status().code(),
            absl::StatusCode::kResourceExhausted);
  work.memory_budget_bytes = 4 * saved;
  const auto kept = Keep(engine, work);
  ASSERT_NE(kept, nullptr);
  work.memory_budget_bytes = 1;
  EXPECT_EQ(ReverseFor(engine, *kept, work).status().code(), absl::StatusCode::kResourceExhausted);
  // From too little for the tape of a step to enough for that of all.
  bool refused = false;
  bool again = false;
  for (int64_t bytes = saved / 8; bytes < 1000 * saved; bytes += bytes / 2) {
    work.memory_budget_bytes = bytes;
    const auto reversed = ReverseFor(engine, *kept, work);
    refused = refused || absl::IsResourceExhausted(reversed.status());
    if (absl::IsResourceExhausted(reversed.status())) continue;
    EXPECT_EQ(Difference(reversed, GradientWork()), "") << bytes;
    EXPECT_EQ(ForwardSteps(reversed), 0) << bytes;
    again = again || (reversed.ok() && reversed->recompute_steps > kSteps * kInstances);
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(again);
}

TEST(CudaKeptRunTest, OnAnotherDeviceOrMappingOrExecutorItRunsForwardAgainToTheSameBits) {
  const sim::Work work = GradientWork();
  const std::vector<std::shared_ptr<Device>> devices = {MakeHostShimDevice(), MakeHostShimDevice()};
  const sim::Engine of_threads = EngineOn({devices[0]}, {.mapping = Mapping::kThreadPerInstance});
  const sim::Engine of_blocks = EngineOn({devices[0]}, {.mapping = Mapping::kBlockPerInstance});
  const sim::Engine other = EngineOn({devices[1]}, {.mapping = Mapping::kThreadPerInstance});
  const sim::Engine reference = ReferenceEngine();
  const auto expect_again = [&](const sim::Engine& kept_by, const sim::Engine& reversed_by) {
    const auto kept = Keep(kept_by, work);
    ASSERT_NE(kept, nullptr);
    const auto reversed = ReverseFor(reversed_by, *kept, work);
    EXPECT_EQ(Difference(reversed, work), "");
    EXPECT_EQ(ForwardSteps(reversed), kSteps * kInstances);
    EXPECT_EQ(ForwardSteps(ReverseFor(kept_by, *kept, work)), 0);
  };
  expect_again(of_threads, of_blocks);
  expect_again(of_threads, other);
  expect_again(of_threads, reference);
  expect_again(reference, of_threads);
}

TEST(CudaKeptRunTest, AProgramThatRunsForwardOtherwiseRunsForwardAgain) {
  const sim::Engine engine = EngineOn({MakeHostShimDevice()});
  const auto kept = Keep(engine, GradientWork(0));
  ASSERT_NE(kept, nullptr);
  const sim::Work other = GradientWork(0, "f64");
  const auto reversed = ReverseFor(engine, *kept, other);
  EXPECT_EQ(Difference(reversed, other), "");
  EXPECT_EQ(ForwardSteps(reversed), kSteps * kInstances);
}

TEST(CudaKeptRunTest, AReversalGoesToTheDeviceThatKeptThoughItHasMoreRuns) {
  const sim::Work work = GradientWork();
  Launches of_first;
  Launches of_second;
  const std::vector<std::shared_ptr<Device>> devices = {of_first.MakeDevice(),
                                                        of_second.MakeDevice()};
  const auto executor = std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(devices));
  const sim::Engine engine(executor);
  const auto kept = Keep(engine, work);
  ASSERT_NE(kept, nullptr);
  EXPECT_GT(of_first.Taken()["simgrad_forward"], 0);
  const auto busy = executor->Create(work.batch, work.options);
  ASSERT_TRUE(busy.ok());
  ASSERT_EQ(devices[0]->runs, 1);
  const auto reversed = ReverseFor(engine, *kept, work);
  EXPECT_EQ(Difference(reversed, work), "");
  EXPECT_EQ(ForwardSteps(reversed), 0);
  EXPECT_GT(of_first.Taken()["simgrad_adjoint"], 0);
  EXPECT_TRUE(of_second.Taken().empty());
  EXPECT_EQ(devices[0]->runs, 1);
}

// A copy that did not arrive is found before anybody can read it.
TEST(CudaKeptRunTest, ACopyThatFailsOnItsWayToTheHostKeepsNothing) {
  const sim::Work work = GradientWork();
  const auto counts = std::make_shared<HostShimCounts>();
  ASSERT_NE(Keep(EngineOn({MakeHostShimDevice({.counts = counts})}), work), nullptr);
  ASSERT_GT(counts->pinned_copies, kSteps + 1);
  for (int64_t k = 0; k < counts->pinned_copies; ++k) {
    const auto device = MakeHostShimDevice({.failing_pinned_copy = k});
    const auto kept = KeepForward(EngineOn({device}), work, work.batch.program);
    EXPECT_EQ(kept.status().code(), absl::StatusCode::kUnavailable) << k << kept.status();
  }
}

TEST(CudaKeptRunTest, EveryAllocationMayFailAndAllMemoryIsGivenBack) {
  const sim::Work work = GradientWork();
  const auto counts = std::make_shared<HostShimCounts>();
  ASSERT_NE(Keep(EngineOn({MakeHostShimDevice({.counts = counts})}), work), nullptr);
  int64_t refused = 0;
  for (int64_t k = 0; k < counts->allocations; ++k) {
    const auto device = MakeHostShimDevice({.failing_allocation = k});
    auto kept = KeepForward(EngineOn({device}), work, work.batch.program);
    if (!kept.ok()) {
      ++refused;
      EXPECT_EQ(kept.status().code(), absl::StatusCode::kResourceExhausted) << kept.status();
    } else {
      EXPECT_EQ(Difference(ReverseFor(EngineOn({device}), **kept, work), work), "") << k;
    }
    kept = absl::CancelledError();
    EXPECT_EQ(device->Use().memory_used_bytes, 0) << k;
    EXPECT_EQ(device->Use().pinned_bytes, 0) << k;
  }
  EXPECT_GT(refused, counts->allocations / 2);
}

TEST(CudaKeptRunTest, TwoReversalsAtOnceReadTheSameStates) {
  const sim::Work work = GradientWork();
  const sim::Engine engine = EngineOn({MakeHostShimDevice()});
  const auto kept = Keep(engine, work);
  ASSERT_NE(kept, nullptr);
  absl::StatusOr<sim::WorkResult> one;
  absl::StatusOr<sim::WorkResult> two;
  std::thread other([&] { one = ReverseFor(engine, *kept, work); });
  two = ReverseFor(engine, *kept, work);
  other.join();
  EXPECT_EQ(Difference(one, work), "");
  EXPECT_EQ(Difference(two, work), "");
  EXPECT_EQ(ForwardSteps(one), 0);
  EXPECT_EQ(ForwardSteps(two), 0);
}

}  // namespace
}  // namespace simgrad::tests
