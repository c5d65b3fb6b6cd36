// The device of sim/backend/cuda/driver/cuda_device.h over the stand-in driver: the calls that it makes,
// in which order, and what becomes of each when it fails.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/program/builder.h"
#include "tests/environment.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/two_parts.h"
#include "tests/sim/program/shaped_programs.h"
#include "tests/sim/weights_of_layers.h"
#include "tests/sim/work_maker.h"
#include "tests/stand_in_gpu/control.h"

namespace simgrad::tests {
namespace {

using sim::equality::FirstDifference;
using sim::equality::Observed;
using stand_in::Report;
using stand_in::Settings;
using Gpu = std::shared_ptr<sim::cuda::Device>;

sim::Work Gradient(int world = 0, const char* preset = "f32", int64_t instances = 40) {
  return WorkOfCase(*LowerCase(WorldCases(3)[static_cast<size_t>(world)], preset, true), instances,
                    12);
}

absl::StatusOr<Observed> OnReference(const sim::Work& work) {
  return sim::equality::Observe(std::shared_ptr<sim::Executor>(sim::MakeReferenceExecutor()), work);
}

absl::StatusOr<Observed> OnGpu(const Gpu& gpu, const sim::Work& work) {
  // The best kernel alone: no thread of the loader mixes its calls into those that are counted.
  sim::CudaExecutorOptions options;
  options.kernel = sim::cuda::KernelChoice::kBest;
  return sim::equality::Observe(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(gpu, options)),
                                work);
}

// Kernels are compiled once for all tests, and kept in a folder of this process.
class StandInGpuTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    ASSERT_NE(dlsym(library_, "simgrad_stand_in_reset"), nullptr)
        << "a driver of NVIDIA's was found: LD_LIBRARY_PATH must name the stand-in's folder";
    folder_ = std::filesystem::temp_directory_path() /
              ("simgrad-stand-in-cache-" + std::to_string(getpid()));
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }
  void SetUp() override { Reset({}); }

  static void Reset(const Settings& settings) {
    reinterpret_cast<decltype(&simgrad_stand_in_reset)>(dlsym(library_, "simgrad_stand_in_reset"))(
        &settings);
  }
  static Report Told() {
    return reinterpret_cast<decltype(&simgrad_stand_in_report)>(
        dlsym(library_, "simgrad_stand_in_report"))();
  }
  static absl::StatusOr<Gpu> Open(int index = 0) {
    return sim::cuda::OpenCudaDevice({index, folder_.string()});
  }

  static void* library_;
  static std::filesystem::path folder_;
};
void* StandInGpuTest::library_ = nullptr;
std::filesystem::path StandInGpuTest::folder_;

TEST_F(StandInGpuTest, GivesTheBitsOfTheReferenceHoweverStreamsPassEachOther) {
  for (const int world : {0, 2, 4}) {
    const sim::Work work = Gradient(world, world == 0 ? "bf16_safe" : "f32");
    const auto expected = OnReference(work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Reset({.seed = seed});
      {
        const auto gpu = Open();
        ASSERT_TRUE(gpu.ok()) << gpu.status();
        const auto got = OnGpu(*gpu, work);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt) << "world " << world;
        EXPECT_GT((*gpu)->Use().busy_seconds, 0.0);
      }
      EXPECT_EQ(Told().held_bytes, 0);
      EXPECT_EQ(Told().pinned_bytes, 0);
      EXPECT_TRUE(Told().whole);
    }
  }
}

TEST_F(StandInGpuTest, AProgramOfManyInputsExportsAndSitesHasTheBitsOfTheReference) {
  const sim::Program world = sim::shaped::ManyOfAll(90, 110, 200, 80);
  const auto program = LowerForGradient(world, PolicyOf({.preset = "f32"}), "end");
  ASSERT_TRUE(program.ok()) << program.status();
  const sim::Work work = WorkOfCase(*program, 37, 7);
  const auto expected = OnReference(work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto got = OnGpu(*gpu, work);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt);
}

TEST_F(StandInGpuTest, ACallThatFailsIsAStatusAndTheDeviceGoesOn) {
  const sim::Work work = Gradient(0, "f32", 3);
  const auto expected = OnReference(work);
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }  // compiles
  Reset({});
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }
  const int64_t calls = Told().calls;
  ASSERT_GT(calls, 100);
  int seen = 0;
  // The even calls fail one way, the odd ones the other; in the long run all of them both ways.
  const bool is_long = IsLong();
  for (const CUresult failure : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    const int64_t first = is_long || failure == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1;
    for (int64_t call = first; call < calls; call += is_long ? 1 : 2) {
      Reset({.failing_call = call, .failure = failure});
      {
        const auto gpu = Open();
        if (gpu.ok()) {
          const auto got = OnGpu(*gpu, work);
          const std::string name = Told().failed;
          if (got.ok()) {
            EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt) << call << " " << name;
          } else {
            // What the pool keeps makes room, and the call is made once more.
            EXPECT_FALSE(failure == CUDA_ERROR_OUT_OF_MEMORY &&
                         (name == "cuMemAllocAsync" || name == "cuModuleLoadData" ||
                          name == "cuModuleGetFunction" || name == "cuLaunchKernel"))
                << name;
            ++seen;
            EXPECT_FALSE(sim::cuda::IsDeviceLost(got.status())) << name << got.status();
            EXPECT_EQ(absl::IsResourceExhausted(got.status()), failure == CUDA_ERROR_OUT_OF_MEMORY)
                << name << got.status();
            EXPECT_EQ((*gpu)->Use().memory_used_bytes, 0) << name;
          }
          EXPECT_FALSE((*gpu)->Use().lost);
          if (name.empty()) continue;  // strikes in what follows the work
          const auto again = OnGpu(*gpu, work);
          ASSERT_TRUE(again.ok()) << name << again.status();
          EXPECT_EQ(FirstDifference(*expected, *again), std::nullopt) << name;
        } else {
          ++seen;
        }
      }
      // What could not be given back because giving back failed is all that may be left.
      const Report told = Told();
      const std::string name = told.failed;
      EXPECT_TRUE(told.held_bytes == 0 || name.starts_with("cuMemFree") ||
                  name == "cuCtxSetCurrent")
          << name;
      EXPECT_TRUE(told.whole) << told.failed;
    }
  }
  EXPECT_GT(seen, calls / 2);
}

TEST_F(StandInGpuTest, AnErrorThatSticksLosesTheDeviceWhereverItStrikes) {
  const sim::Work work = Gradient(0, "f32", 3);
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }  // compiles
  Reset({});
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }
  const int64_t calls = Told().calls;
  int lost = 0;
  for (int64_t call = 0; call < calls; ++call) {
    Reset({.failing_call = call, .failure = CUDA_ERROR_ILLEGAL_ADDRESS});
    const auto gpu = Open();
    if (!gpu.ok()) continue;
    const auto got = OnGpu(*gpu, work);
    if (got.ok()) continue;  // struck in what follows the work
    ++lost;
    EXPECT_TRUE(sim::cuda::IsDeviceLost(got.status())) << Told().failed << got.status();
    EXPECT_TRUE((*gpu)->Use().lost) << Told().failed;
    EXPECT_GE((*gpu)->Use().lost_errors, 1u);
    EXPECT_TRUE(sim::cuda::IsDeviceLost(OnGpu(*gpu, work).status()));
  }
  EXPECT_GT(lost, 100);
}

sim::Engine EngineOn(const Gpu& gpu) {
  return sim::Engine(std::shared_ptr<sim::Executor>(
      sim::MakeCudaExecutor(gpu, {.kernel = sim::cuda::KernelChoice::kBest})));
}

// A forward pass that is kept, and its reversal; each by an engine of its own on the device.
absl::StatusOr<sim::WorkResult> InTwoParts(const Gpu& gpu, const sim::Work& work) {
  const auto kept = sim::equality::KeepForward(EngineOn(gpu), work, work.batch.program);
  if (!kept.ok()) return kept.status();
  return sim::equality::ReverseFor(EngineOn(gpu), **kept, work);
}

TEST_F(StandInGpuTest, AKeptForwardPassIsReversedToTheSameBitsHoweverStreamsPassEachOther) {
  for (const int64_t interval : {0, 1, 5}) {
    sim::Work work = Gradient(0, "bf16_safe");
    work.checkpoint_interval = interval;
    const auto expected = OnReference(work);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Reset({.seed = seed});
      {
        const auto gpu = Open();
        ASSERT_TRUE(gpu.ok()) << gpu.status();
        const auto reversed = InTwoParts(*gpu, work);
        ASSERT_TRUE(reversed.ok()) << reversed.status();
        EXPECT_EQ(reversed->forward_steps, 0);
        EXPECT_EQ(sim::equality::DifferenceOfReversal(expected->result, *reversed), std::nullopt);
      }
      EXPECT_EQ(Told().held_bytes, 0);
      EXPECT_EQ(Told().pinned_bytes, 0);
      EXPECT_TRUE(Told().whole);
    }
  }
}

TEST_F(StandInGpuTest, ACallThatFailsLeavesNothingKeptThatIsNotWhole) {
  sim::Work work = Gradient(0, "f32", 3);
  work.checkpoint_interval = 3;
  const auto expected = OnReference(work);
  { ASSERT_TRUE(InTwoParts(*Open(), work).ok()); }  // compiles
  Reset({});
  { ASSERT_TRUE(InTwoParts(*Open(), work).ok()); }
  const int64_t calls = Told().calls;
  int seen = 0;
  for (int64_t call = 0; call < calls; call += IsLong() ? 1 : 2) {
    Reset({.failing_call = call, .failure = CUDA_ERROR_INVALID_VALUE});
    const auto gpu = Open();
    if (!gpu.ok()) continue;
    const auto reversed = InTwoParts(*gpu, work);
    if (reversed.ok()) {
      EXPECT_EQ(sim::equality::DifferenceOfReversal(expected->result, *reversed), std::nullopt)
          << call << " " << Told().failed;
    } else {
      ++seen;
      EXPECT_EQ((*gpu)->Use().memory_used_bytes, 0) << Told().failed;
    }
  }
  EXPECT_GT(seen, calls / 4);
}

// A layer whose gradient is summed over the instances: a window of it per launch.
sim::Work Layer() {
  sim::Builder b("layer");
  const sim::Var x = b.State("x", {1, 8});
  const sim::Var w = b.Weights("w", {8, 8});
  b.SetNext({b.Apply(sim::OpCode::kTanh, {b.Do(sim::OpCode::kMatmul, {x, w})})});
  b.AddObjective("end", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    return b.Reduce(sim::OpCode::kSum, states[0] * states[0]);
  });
  constexpr int64_t kInstances = 33;
  sim::Work work =
      WorkOf(*LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), "end"), kInstances, 9);
  Bind(work, sim::InputKind::kState, "x",
       {Doubles(Sines(8 * kInstances, 0.37), {kInstances, 1, 8}), true, false});
  Bind(work, sim::InputKind::kParam, "w", Shared(Sines(64, 0.7), {8, 8}));
  return work;
}

TEST_F(StandInGpuTest, RecordsAndWindowsOfWeightsInPinnedMemoryGiveTheSameBits) {
  const sim::Work work = Layer();
  const auto expected = OnReference(work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  {
    const auto gpu = Open();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    const auto got = sim::equality::Observe(
        std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
            *gpu, {.kernel = sim::cuda::KernelChoice::kBest, .record_bytes = 0})),
        work);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt);
    EXPECT_GT(Told().pinned_bytes, 0);  // kept for the next request
  }
  EXPECT_TRUE(Told().whole);
  EXPECT_EQ(Told().pinned_bytes, 0);
}

// Says whether the executor is at work between chunks.
struct BetweenChunks : sim::Observer {
  explicit BetweenChunks(const sim::Executor& asked) : executor(asked) {}
  void OnForward(const sim::ForwardChunk&) override { Look(); }
  void OnAdjoint(int64_t, const sim::AdjointChunk&) override { Look(); }
  void Look() {
    ++chunks;
    at_work += executor.IsAtWork() ? 1 : 0;
  }
  const sim::Executor& executor;
  int chunks = 0, at_work = 0;
};

TEST_F(StandInGpuTest, ItIsAtWorkFromALaunchToItsEndButNotForATrial) {
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const std::shared_ptr<sim::Executor> executor =
      sim::MakeCudaExecutor(*gpu, {.kernel = sim::cuda::KernelChoice::kBest});
  EXPECT_FALSE(executor->IsAtWork());
  for (const bool is_trial : {false, true}) {
    sim::Work work = Gradient();
    work.chunk_steps = 5;
    int launches = 0;
    int at_work = 0;  // when something more is launched
    work.options.is_trial = is_trial;
    work.options.stop = [&] {
      ++launches;
      at_work += executor->IsAtWork() ? 1 : 0;
      return false;
    };
    BetweenChunks observer(*executor);
    const auto result = sim::Engine(executor).Execute(work, observer);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GT(launches, 5);
    EXPECT_EQ(at_work > 0, !is_trial);
    EXPECT_GT(observer.chunks, 5);
    EXPECT_EQ(observer.at_work, 0);
    EXPECT_FALSE(executor->IsAtWork());
  }
}

TEST_F(StandInGpuTest, MemoryThatIsShortIsToldWithItsFigures) {
  Reset({.memory_bytes = 20'000});
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const absl::Status status = OnGpu(*gpu, Gradient()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("of 20000 bytes free"), std::string::npos) << status;
  EXPECT_GE((*gpu)->Use().memory_errors, 1u);
  EXPECT_EQ((*gpu)->Use().memory_used_bytes, 0);
  EXPECT_EQ(Told().held_bytes, 0);
}

// From 1 byte to more than is copied aside, more often than there is room aside.
TEST_F(StandInGpuTest, WhatWasSentMayChangeOnceTheCallIsBack) {
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  auto stream = (*gpu)->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (const size_t bytes : {1, 1000, 16 << 10, (16 << 10) + 1, 1 << 20}) {
    const auto buffer = (*gpu)->Allocate(static_cast<int64_t>(bytes));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    const auto copy = (*gpu)->Allocate(static_cast<int64_t>(bytes) * 100);
    ASSERT_TRUE(copy.ok()) << copy.status();
    for (int k = 0; k < 100; ++k) {
      std::string sent(bytes, static_cast<char>(k));
      ASSERT_TRUE((*stream)->ToDevice(buffer->data(), sent.data(), buffer->bytes()).ok());
      sent.assign(bytes, 'x');
      auto* const place = static_cast<char*>(copy->data()) + static_cast<size_t>(k) * bytes;
      ASSERT_TRUE((*stream)->OnDevice(place, buffer->data(), buffer->bytes()).ok());
    }
    std::string got(100 * bytes, '\0');
    ASSERT_TRUE((*stream)->ToHost(got.data(), copy->data(), copy->bytes()).ok());
    for (size_t k = 0; k < 100; ++k) {
      EXPECT_EQ(got.substr(k * bytes, bytes), std::string(bytes, static_cast<char>(k))) << bytes;
    }
  }
}

TEST_F(StandInGpuTest, WhatThePoolKeepsIsAQuarterAndMakesRoomForWhatDoesNotFitBesideIt) {
  Reset({.memory_bytes = 1000});
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  { ASSERT_TRUE((*gpu)->Allocate(600).ok()); }
  EXPECT_EQ(Told().kept_bytes, 600);  // until the next wait
  { EXPECT_TRUE((*gpu)->Allocate(700).ok()); }
  {
    const auto first = (*gpu)->Allocate(200);
    const auto second = (*gpu)->Allocate(300);
    EXPECT_TRUE(first.ok() && second.ok());
  }
  EXPECT_EQ(Told().kept_bytes, 500);
  EXPECT_TRUE((*gpu)->Allocate(400).ok());  // has waited
  EXPECT_LE(Told().kept_bytes - 400, 250);
  EXPECT_TRUE(absl::IsResourceExhausted((*gpu)->Allocate(1001).status()));
  EXPECT_EQ((*gpu)->Use().memory_errors, 1u);  // what was cured is none
}

// With copies of states and tapes in the host's memory alone.
TEST_F(StandInGpuTest, PinnedMemoryIsNotMoreThanTheRunCounts) {
  for (const int64_t instances : {3, 200, 700}) {
    SCOPED_TRACE(instances);
    const auto gpu = Open();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    const auto executor = sim::MakeCudaExecutor(
        *gpu, {.kernel = sim::cuda::KernelChoice::kBest, .checkpoint_bytes = 0, .record_bytes = 0});
    auto run = executor->Create(Gradient(0, "f32", instances).batch, {});
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_TRUE((*run)->Start().ok());
    std::vector<std::shared_ptr<const void>> saved = {(*run)->SaveState()};
    ASSERT_TRUE((*run)->Forward(0, 12).ok());
    const int64_t before = (*gpu)->Use().pinned_bytes;
    for (int k = 0; k < 5; ++k) saved.push_back((*run)->SaveState());
    ASSERT_TRUE((*run)->Failed().ok()) << (*run)->Failed();
    const int64_t copied = (*gpu)->Use().pinned_bytes;
    EXPECT_GT(copied, before);
    EXPECT_LE(copied - before, 5 * (*run)->SavedBytes());
    ASSERT_TRUE((*run)->Finish().ok());
    ASSERT_TRUE((*run)->StartAdjoint(1.0, {}).ok());
    (*run)->RestoreState(saved.front());
    ASSERT_TRUE((*run)->Adjoint(0, 12).ok());
    EXPECT_GT((*gpu)->Use().pinned_bytes, copied);
    EXPECT_LE((*gpu)->Use().pinned_bytes - copied, (*run)->AdjointBytes(0, 12));
  }
}

// Of the 4096 threads that the GPU holds, together four fifths of its memory.
constexpr Settings LocalMemory() { return {.memory_bytes = 4'096'000, .local_bytes = 800}; }

TEST_F(StandInGpuTest, WhatThePoolKeepsMakesRoomForTheLocalMemoryOfAKernel) {
  const sim::Work work = Gradient(0, "f32", 3);
  const auto expected = OnReference(work);
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }  // compiles
  Reset(LocalMemory());
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  {
    std::vector<sim::cuda::Buffer> pieces;
    for (int k = 0; k < 250; ++k) pieces.push_back(*(*gpu)->Allocate(4'000));
  }
  EXPECT_GT(Told().kept_bytes, 4'096'000 / 5);
  const auto got = OnGpu(*gpu, work);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt);
  EXPECT_EQ((*gpu)->Use().memory_errors, 0u);  // what was cured is none
}

TEST_F(StandInGpuTest, LocalMemoryThatDoesNotFitIsToldAndAskedForAnew) {
  const sim::Work work = Gradient(0, "f32", 3);
  { ASSERT_TRUE(OnGpu(*Open(), work).ok()); }  // compiles
  Reset(LocalMemory());
  const auto gpu = Open();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  {
    const auto held = (*gpu)->Allocate(1'000'000);
    ASSERT_TRUE(held.ok()) << held.status();
    const absl::Status status = OnGpu(*gpu, work).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(status.message().find("of 4096000 bytes free; the threads of kernel simgrad_start "
                                    "need about 3276800 of local memory"),
              std::string::npos)
        << status;
    EXPECT_EQ((*gpu)->Use().memory_errors, 1u);
    EXPECT_EQ((*gpu)->Use().memory_used_bytes, 1'000'000);
  }
  EXPECT_TRUE(OnGpu(*gpu, work).ok());
}

TEST_F(StandInGpuTest, WithoutMemoryPoolsTheBitsAreTheSameAndNothingIsHeldAfterwards) {
  const sim::Work work = Gradient();
  const auto expected = OnReference(work);
  Reset({.memory_pools = 0});
  {
    const auto gpu = Open();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    const auto got = OnGpu(*gpu, work);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(FirstDifference(*expected, *got), std::nullopt);
  }
  EXPECT_EQ(Told().held_bytes, 0);
  EXPECT_TRUE(Told().whole);
  Reset({.memory_bytes = 1000, .memory_pools = 0});
  EXPECT_TRUE(absl::IsResourceExhausted((*Open())->Allocate(1001).status()));
}

TEST_F(StandInGpuTest, KernelsAreFoundInMemoryAndInTheFolder) {
  const sim::Work work = Gradient(3);
  {
    const auto gpu = Open();
    ASSERT_TRUE(OnGpu(*gpu, work).ok());
    ASSERT_TRUE(OnGpu(*gpu, work).ok());
    EXPECT_EQ((*gpu)->Use().compiled, 1u);
    EXPECT_EQ((*gpu)->Use().loaded_from_disk, 0u);
    EXPECT_EQ((*gpu)->Use().loaded_from_memory, 1u);
  }
  const auto gpu = Open();
  ASSERT_TRUE(OnGpu(*gpu, work).ok());
  EXPECT_EQ((*gpu)->Use().compiled, 0u);
  EXPECT_EQ((*gpu)->Use().loaded_from_disk, 1u);
}

TEST_F(StandInGpuTest, EveryGpuIsFoundAndNoOther) {
  Reset({.gpus = 2});
  const auto devices = sim::cuda::ListCudaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1].architecture, "sm_90");
  EXPECT_NE((*devices)[0].uuid, (*devices)[1].uuid);
  EXPECT_TRUE(OnGpu(*Open(1), Gradient()).ok());
  EXPECT_EQ(Open(2).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StandInGpuTest, AGpuThatRefusesHoldsBackNoOther) {
  Reset({.gpus = 2, .refusing = 0});
  EXPECT_EQ(sim::cuda::ListCudaDevices()->size(), 2u);
  EXPECT_FALSE(Open(0).ok());
  EXPECT_TRUE(OnGpu(*Open(1), Gradient()).ok());
}

TEST_F(StandInGpuTest, WhatAnotherThreadDestroysIsGivenBackToo) {
  {
    const auto gpu = Open();
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    auto stream = (*gpu)->OpenStream();
    auto event = (*gpu)->MakeEvent();
    ASSERT_TRUE(stream.ok() && event.ok());
    ASSERT_TRUE((*stream)->Record(**event).ok());
    EXPECT_EQ(Told().events, 1);
    // A thread that has made no call yet.
    std::thread([&] { event->reset(); }).join();
    EXPECT_EQ(Told().events, 0);
  }
}

TEST_F(StandInGpuTest, APartOfAGpuAndAGpuWithADisplayAreToldAsSuch) {
  Reset({.name = "stand-in GPU MIG 1g.5gb", .watched = 1});
  const auto devices = sim::cuda::ListCudaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->front().uuid.substr(0, 4), "MIG-");
  EXPECT_EQ((*Open())->limits().launch_time, sim::cuda::LaunchTime::kWatched);
  Reset({});
  EXPECT_EQ(sim::cuda::ListCudaDevices()->front().uuid.substr(0, 4), "GPU-");
  EXPECT_EQ((*Open())->limits().launch_time, sim::cuda::LaunchTime::kFree);
}

}  // namespace
}  // namespace simgrad::tests
