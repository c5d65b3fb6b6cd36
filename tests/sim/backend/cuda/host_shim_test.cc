// The machine that stands in for a GPU finds the faults it is there for.
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

namespace simgrad::tests {
namespace {

using sim::cuda::GeneratedSource;
using sim::cuda::KernelArgs;

constexpr int kThreads = 96;

// Adds the numbers of a block by halves of its shared memory; thread 0 writes the sum.
constexpr char kSum[] = R"(
#include "sim/backend/cuda/kernel_abi.h"
extern "C" __global__ void simgrad_start(const __grid_constant__ simgrad::sim::cuda::KernelArgs args) {
  int* const sums = reinterpret_cast<int*>(simgrad_shared);
  sums[threadIdx.x] = static_cast<int>(args.integer[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  for (unsigned width = 64; width > 0; width /= 2) {
    if (threadIdx.x < width && threadIdx.x + width < blockDim.x) {
      sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) static_cast<int*>(args.field[0])[blockIdx.x] = sums[0];
}
)";

struct Launched {
  absl::Status status;
  std::vector<int> sums;
};

Launched LaunchSums(const std::string& text, uint64_t seed, int64_t blocks) {
  const auto device = MakeHostShimDevice({.seed = seed});
  GeneratedSource source;
  source.text = text;
  const auto module = device->Load(source, sim::cuda::KernelChoice::kBest);
  if (!module.ok()) return {module.status(), {}};
  auto stream = *device->OpenStream();
  std::vector<int64_t> numbers(static_cast<size_t>(blocks * kThreads));
  std::iota(numbers.begin(), numbers.end(), 1);
  const auto in = *device->Allocate(static_cast<int64_t>(numbers.size()) * 8);
  const auto out = *device->Allocate(blocks * 4);
  EXPECT_TRUE(stream->ToDevice(in.data(), numbers.data(), in.bytes()).ok());
  KernelArgs args = {};
  args.integer = static_cast<const int64_t*>(in.data());
  args.field[0] = out.data();
  Launched launched;
  launched.status =
      stream->Launch(**module, "simgrad_start", {blocks, kThreads, 4 * kThreads}, args);
  launched.sums.resize(static_cast<size_t>(blocks));
  launched.status.Update(stream->ToHost(launched.sums.data(), out.data(), out.bytes()));
  return launched;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to,
                     size_t which = 0) {
  size_t at = text.find(from);
  for (size_t i = 0; i < which; ++i) at = text.find(from, at + 1);
  return text.replace(at, from.size(), to);
}

TEST(HostShimTest, ABlockAddsInStepWithItsBarriersInEveryOrderOfThreads) {
  const std::vector<int> expected = {kThreads * (kThreads + 1) / 2,
                                     kThreads * (kThreads + 1) / 2 + kThreads * kThreads};
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Launched launched = LaunchSums(kSum, seed, 2);
    ASSERT_TRUE(launched.status.ok()) << launched.status;
    EXPECT_EQ(launched.sums, expected) << "seed " << seed;
  }
}

TEST(HostShimTest, AMissingBarrierGivesAnotherSum) {
  for (size_t which : {size_t{0}, size_t{1}}) {
    const Launched launched = LaunchSums(Replaced(kSum, "__syncthreads();", ";", which), 1, 1);
    ASSERT_TRUE(launched.status.ok()) << launched.status;
    EXPECT_NE(launched.sums[0], kThreads * (kThreads + 1) / 2);
  }
}

TEST(HostShimTest, ThreadsThatPartAtABarrierAreAnError) {
  const Launched launched = LaunchSums(
      Replaced(kSum, "__syncthreads();", "if (threadIdx.x == 7) return;\n  __syncthreads();"), 1,
      1);
  EXPECT_EQ(launched.status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(launched.status.message()).find("thread 7 has ended"), std::string::npos)
      << launched.status;
}

TEST(HostShimTest, AWritePastTheEndOfABufferIsAnError) {
  const Launched launched =
      LaunchSums(Replaced(kSum, "[blockIdx.x] = sums", "[blockIdx.x + 1] = sums"), 1, 1);
  EXPECT_EQ(launched.status.code(), absl::StatusCode::kInternal);
}

TEST(HostShimTest, ATextThatDoesNotCompileGivesTheLogOfTheCompiler) {
  const Launched launched = LaunchSums("#error no kernel", 1, 1);
  EXPECT_EQ(launched.status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(launched.status.message()).find("no kernel"), std::string::npos);
}

TEST(HostShimTest, MemoryAboveTheLimitIsResourceExhausted) {
  const auto device = MakeHostShimDevice({.memory_bytes = 1000});
  const auto first = device->Allocate(600);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(device->Allocate(600).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HostShimTest, StreamsWorkAsLateAsTheWaitsAllow) {
  const auto device = MakeHostShimDevice();
  auto first = *device->OpenStream();
  auto second = *device->OpenStream();
  auto event = *device->MakeEvent();
  const auto memory = *device->Allocate(1);
  const auto pinned = *device->Allocate(1, sim::cuda::MemoryKind::kPinned);
  auto& seen = *static_cast<uint8_t*>(pinned.data());
  ASSERT_TRUE(first->Fill(memory.data(), 7, 1).ok());
  ASSERT_TRUE(first->Record(*event).ok());
  ASSERT_TRUE(first->Fill(memory.data(), 8, 1).ok());
  // Without a wait the other stream sees neither; behind the event the first number alone.
  ASSERT_TRUE(second->ToPinned(&seen, memory.data(), 1).ok());
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_NE(seen, 7);
  EXPECT_NE(seen, 8);
  ASSERT_TRUE(second->WaitFor(*event).ok());
  ASSERT_TRUE(second->ToPinned(&seen, memory.data(), 1).ok());
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_EQ(seen, 7);
  ASSERT_TRUE(first->Wait().ok());
}

TEST(HostShimTest, ACopyThatNobodyWaitsForNeedsPinnedMemory) {
  const auto device = MakeHostShimDevice();
  auto stream = *device->OpenStream();
  const auto memory = *device->Allocate(1);
  uint8_t number = 0;
  EXPECT_FALSE(stream->ToPinned(&number, memory.data(), 1).ok());
}

}  // namespace
}  // namespace simgrad::tests
