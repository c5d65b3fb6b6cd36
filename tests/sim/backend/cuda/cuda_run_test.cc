// How a run uses a device: memory that runs out or comes back, checkpoints, several devices.
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/cuda_executor.h"
#include "sim/backend/cuda/saved_states.h"
#include "sim/engine.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"

namespace simgrad::tests {
namespace {

sim::Work GradientWork() { return WorkOfCase(*LowerCase(WorldCases(3)[0], "f32", true), 40, 12); }

absl::StatusOr<sim::WorkResult> RunOn(const std::shared_ptr<sim::cuda::Device>& device,
                                      sim::Work work) {
  sim::Observer observer;
  const sim::Engine engine(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(device)));
  return engine.Execute(std::move(work), observer);
}

TEST(CudaRunTest, AllMemoryIsGivenBackAfterTheWork) {
  const auto device = MakeHostShimDevice();
  ASSERT_TRUE(RunOn(device, GradientWork()).ok());
  EXPECT_EQ(device->Use().memory_used_bytes, 0);
  EXPECT_EQ(device->runs, 0);
}

TEST(CudaRunTest, MemoryThatRunsOutIsAStatusWhereverItRunsOut) {
  const auto whole = RunOn(MakeHostShimDevice(), GradientWork());
  ASSERT_TRUE(whole.ok());
  bool enough = false;
  int refused = 0;
  // From far too little to enough, in steps that stop at every allocation of the run.
  for (int64_t bytes = 512; !enough; bytes += bytes / 4) {
    ASSERT_LT(bytes, int64_t{1} << 30);
    const auto device = MakeHostShimDevice({.memory_bytes = bytes});
    const auto result = RunOn(device, GradientWork());
    EXPECT_EQ(device->Use().memory_used_bytes, 0) << bytes;
    enough = result.ok();
    if (enough) {
      EXPECT_EQ(result->final_states, whole->final_states);
      EXPECT_EQ(result->gradients.front().gradient, whole->gradients.front().gradient);
      continue;
    }
    ++refused;
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  }
  EXPECT_GT(refused, 5);
}

TEST(CudaRunTest, ARunThatIsAskedToStopStopsBeforeItsNextKernel) {
  const auto device = MakeHostShimDevice();
  bool stop = false;
  sim::RunOptions options;
  options.stop = [&stop] { return stop; };
  auto run = sim::MakeCudaExecutor(device)->Create(GradientWork().batch, options);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Start().ok());
  ASSERT_TRUE((*run)->Forward(0, 3).ok());
  stop = true;
  EXPECT_EQ((*run)->Forward(3, 3).status().code(), absl::StatusCode::kCancelled);
  run->reset();
  EXPECT_EQ(device->Use().memory_used_bytes, 0);
}

TEST(SavedStatesTest, CopiesGoToTheHostWhereTheDeviceIsFull) {
  const auto device = MakeHostShimDevice({.memory_bytes = 1000});
  auto stream = *device->OpenStream();
  sim::cuda::SavedStates saved(device, 300);
  auto live = *device->Allocate(300);
  std::vector<std::shared_ptr<const sim::cuda::SavedStates::Copy>> copies;
  for (uint8_t k = 0; k < 4; ++k) {
    ASSERT_TRUE(stream->Fill(live.data(), k, 300).ok());
    copies.push_back(*saved.Save(*stream, live.data()));
  }
  EXPECT_TRUE(copies[0]->host.empty());
  EXPECT_EQ(copies[3]->host.size(), 300u);
  for (uint8_t k = 0; k < 4; ++k) {
    ASSERT_TRUE(saved.Restore(*stream, *copies[k], live.data()).ok());
    EXPECT_EQ(std::vector<uint8_t>(300, k),
              std::vector<uint8_t>(static_cast<uint8_t*>(live.data()),
                                   static_cast<uint8_t*>(live.data()) + 300));
  }
}

TEST(SavedStatesTest, MemoryOfACopyThatWasDroppedServesTheNext) {
  const auto device = MakeHostShimDevice();
  auto stream = *device->OpenStream();
  sim::cuda::SavedStates saved(device, 300);
  auto live = *device->Allocate(300);
  const void* const first = (*saved.Save(*stream, live.data()))->device.data();
  EXPECT_EQ((*saved.Save(*stream, live.data()))->device.data(), first);
}

TEST(CudaExecutorTest, RunsGoToTheDeviceWithTheFewest) {
  const std::vector<std::shared_ptr<sim::cuda::Device>> devices = {MakeHostShimDevice(),
                                                                   MakeHostShimDevice()};
  const auto executor = sim::MakeCudaExecutor(devices);
  const sim::Work work = GradientWork();
  auto first = executor->Create(work.batch, work.options);
  auto second = executor->Create(work.batch, work.options);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(devices[0]->runs, 1);
  EXPECT_EQ(devices[1]->runs, 1);
  first->reset();
  auto third = executor->Create(work.batch, work.options);
  EXPECT_EQ(devices[0]->runs, 1);
}

}  // namespace
}  // namespace simgrad::tests
