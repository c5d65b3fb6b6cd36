// How a run uses a device: memory that runs out or comes back, records that travel, several
// devices.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/device/tape.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/engine.h"
#include "sim/program/builder.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

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

// Whether everything that a run gives is the same, to the bit.
std::string Difference(const sim::equality::Observed& expected,
                       const std::shared_ptr<sim::cuda::Device>& device, const sim::Work& work,
                       const sim::CudaExecutorOptions& options) {
  const auto actual = sim::equality::Observe(
      std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(device, options)), work);
  if (!actual.ok()) return actual.status().ToString();
  return sim::equality::FirstDifference(expected, *actual).value_or("");
}

sim::equality::Observed ReferenceOf(const sim::Work& work) {
  return *sim::equality::Observe(sim::MakeReferenceExecutor(), work);
}

TEST(CudaRunTest, EveryAllocationMayFailAndTheNextRunIsRight) {
  for (const bool gradient : {false, true}) {
    const sim::Work work =
        gradient ? GradientWork() : WorkOfCase(*LowerCase(WorldCases(3)[0], "f32", false), 40, 12);
    const auto expected = ReferenceOf(work);
    const auto counts = std::make_shared<HostShimCounts>();
    ASSERT_TRUE(RunOn(MakeHostShimDevice({.counts = counts}), work).ok());
    ASSERT_GT(counts->allocations, 10);
    int64_t refused = 0;
    for (int64_t k = 0; k < counts->allocations; ++k) {
      const auto device = MakeHostShimDevice({.failing_allocation = k});
      const auto result = RunOn(device, work);
      EXPECT_EQ(device->Use().memory_used_bytes, 0) << k;
      EXPECT_EQ(device->Use().pinned_bytes, 0) << k;
      EXPECT_EQ(device->runs, 0) << k;
      refused += result.ok() ? 0 : 1;
      if (!result.ok()) {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
      }
      std::string difference = Difference(expected, device, work, {});
      // A run whose copies ended sooner asks for less, and leaves the failure to the next.
      if (result.ok() && !difference.empty()) difference = Difference(expected, device, work, {});
      EXPECT_EQ(difference, "") << "after allocation " << k << " failed";
    }
    // The others were of copies of states and records, which go to the host instead.
    EXPECT_GT(refused, counts->allocations / 2);
  }
}

TEST(CudaRunTest, MemoryThatRunsOutIsAStatusWhereverItRunsOut) {
  const sim::Work work = GradientWork();
  const auto expected = ReferenceOf(work);
  int refused = 0;
  // From far too little to enough.
  for (int64_t bytes = 512;; bytes += bytes / 4) {
    ASSERT_LT(bytes, int64_t{1} << 30);
    const auto device = MakeHostShimDevice({.memory_bytes = bytes});
    const auto result = RunOn(device, work);
    EXPECT_EQ(device->Use().memory_used_bytes, 0) << bytes;
    if (result.ok()) {
      EXPECT_EQ(Difference(expected, device, work, {}), "");
      break;
    }
    ++refused;
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  }
  EXPECT_GT(refused, 5);
}

// A device that is lost while results are read: nothing behind that read has a status of its own.
TEST(CudaRunTest, AReadThatFailsIsAStatusWhicheverItIs) {
  for (const bool gradient : {false, true}) {
    const sim::Work work =
        gradient ? GradientWork() : WorkOfCase(*LowerCase(WorldCases(3)[0], "f32", false), 40, 12);
    const auto counts = std::make_shared<HostShimCounts>();
    ASSERT_TRUE(RunOn(MakeHostShimDevice({.counts = counts}), work).ok());
    ASSERT_GT(counts->reads, 3);
    int64_t failed = 0;
    for (int64_t k = 0; k < counts->reads; ++k) {
      const auto own = std::make_shared<HostShimCounts>();
      const auto result = RunOn(MakeHostShimDevice({.failing_read = k, .counts = own}), work);
      // The clock chooses chunks, so a run may have fewer reads than another.
      if (own->reads <= k) continue;
      EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << k << " of " << gradient;
      ++failed;
    }
    EXPECT_GT(failed, counts->reads / 2);
  }
}

// The terminal cost reads a control that has no entry, and gives it no gradient.
TEST(CudaRunTest, ARunOfNoStepsHasAControlByStep) {
  sim::Builder b("end");
  const sim::Var x = b.State("x", {});
  const sim::Var u = b.Control("u", {3});
  b.SetNext({x + b.Reduce(sim::OpCode::kSum, u)});
  b.AddObjective("end", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    return states[0] * states[0] + b.Reduce(sim::OpCode::kSum, u * u);
  });
  auto program = LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), "end");
  ASSERT_TRUE(program.ok()) << program.status();
  constexpr int64_t kInstances = 100;
  sim::Work work = WorkOf(*std::move(program), kInstances, 0);
  Bind(work, sim::InputKind::kState, "x",
       {Doubles(std::vector<double>(kInstances, 0.5), {kInstances}), true, false});
  Bind(work, sim::InputKind::kControl, "u", {Doubles({}, {kInstances, 0, 3}), true, true});
  const auto expected = ReferenceOf(work);
  for (const auto mapping :
       {sim::cuda::Mapping::kThreadPerInstance, sim::cuda::Mapping::kBlockPerInstance}) {
    EXPECT_EQ(Difference(expected, MakeHostShimDevice(), work, {.mapping = mapping}), "");
  }
}

// A checkpoint every two steps.
sim::Work BusyWork() {
  sim::Work work = GradientWork();
  work.checkpoint_interval = 2;
  work.chunk_steps = 6;
  return work;
}

TEST(CudaRunTest, CheckpointsAndRecordsInPinnedMemoryGiveTheSameBits) {
  const sim::Work work = BusyWork();
  const auto expected = ReferenceOf(work);
  const auto device = MakeHostShimDevice();
  const int64_t saved =
      (*sim::MakeCudaExecutor(device)->Create(work.batch, work.options))->SavedBytes();
  for (const int64_t checkpoints : {int64_t{0}, saved, 3 * saved}) {
    for (const int64_t records : {int64_t{0}, int64_t{1} << 30}) {
      EXPECT_EQ(Difference(expected, device, work,
                           {.checkpoint_bytes = checkpoints, .record_bytes = records}),
                "")
          << checkpoints << " bytes for checkpoints, " << records << " for records";
    }
  }
}

// Steps 6 to 12, one per launch, on a run whose memory has grown to what it needs: growing waits.
absl::StatusOr<sim::ForwardChunk> SecondChunk(const std::shared_ptr<sim::cuda::Device>& device,
                                              const sim::Work& work) {
  auto run = sim::MakeCudaExecutor(device, {.steps = 1})->Create(work.batch, work.options);
  if (!run.ok()) return run.status();
  if (absl::Status status = (*run)->Start(); !status.ok()) return status;
  if (const auto first = (*run)->Forward(0, 6); !first.ok()) return first.status();
  return (*run)->Forward(6, 6);
}

TEST(CudaRunTest, ARecordThatIsReadBeforeItHasArrivedIsAnother) {
  const sim::Work work = GradientWork();
  const auto counts = std::make_shared<HostShimCounts>();
  const auto expected = SecondChunk(MakeHostShimDevice({.counts = counts}), work);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(counts->event_waits, 24);  // per launch the stream of copies, and the host
  for (int64_t k = 12; k < counts->event_waits; ++k) {
    const auto actual = SecondChunk(MakeHostShimDevice({.skipped_wait = k}), work);
    EXPECT_TRUE(!actual.ok() || actual->states != expected->states) << "without wait " << k;
  }
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

TEST(TapeMeterTest, CountsMoreUnitsThanAPositionCanTell) {
  sim::cuda::device::TapeMeter meter;
  for (int k = 0; k < 3; ++k) meter.Take(uint32_t{1} << 31);
  EXPECT_EQ(meter.top, 3ull << 31);
}

// The kernels count two gigaunits more per step than there are: one step still has a tape, two have
// none, and no budget is large enough for them.
TEST(CudaRunTest, ARangeWhoseTapeWouldBeLongerThanItsPositionsIsRefused) {
  const std::string counts = "units = self.tape.top";
  const auto device = MakeHostShimDevice({.plant = [&](const std::string& given) {
    std::string text = WithKernels(given);
    return text.replace(text.find(counts), counts.size(), counts + " + (1ull << 31)");
  }});
  auto run = sim::MakeCudaExecutor(device, {.block = 1, .grid = 1})
                 ->Create(GradientWork().batch, sim::RunOptions{});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Start().ok());
  ASSERT_TRUE((*run)->Forward(0, 12).ok());
  ASSERT_TRUE((*run)->Finish().ok());
  ASSERT_TRUE((*run)->StartAdjoint(1.0, {}).ok());
  EXPECT_LT((*run)->AdjointBytes(11, 1), int64_t{1} << 34);
  EXPECT_GT((*run)->AdjointBytes(10, 2), int64_t{1} << 60);
  const absl::Status status = (*run)->Adjoint(10, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("steps 10 to 11"), std::string::npos) << status;
}

// Loops in loops of 10^6 turns, each of which keeps an array.
sim::Var Turned(sim::Builder& b, sim::Var x, int depth) {
  return b.For(100, {x}, [&](sim::Var, const sim::Vars& now) {
    return sim::Vars{depth == 1 ? now[0] * now[0] : Turned(b, now[0], depth - 1)};
  })[0];
}

// In a branch that is not taken.
sim::Var NotTurned(sim::Builder& b, sim::Var x) {
  return b.Cond(b.Integer(0), {x},
                {[](const sim::Vars& now) { return now; },
                 [&](const sim::Vars& now) { return sim::Vars{Turned(b, now[0], 3)}; }})[0];
}

TEST(CudaRunTest, ATapeOfTheTerminalCostOrOfInitialThatIsTooLongIsRefused) {
  for (const bool of_initial : {false, true}) {
    sim::Builder b("turned");
    const sim::Var x = b.State("x", {8000});
    b.SetNext({x + x});
    if (of_initial) b.SetInitial([&] { return sim::Vars{NotTurned(b, x)}; });
    b.AddObjective("end", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
      return b.Reduce(sim::OpCode::kSum, of_initial ? states[0] : NotTurned(b, states[0]));
    });
    auto program = LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), "end");
    ASSERT_TRUE(program.ok()) << program.status();
    sim::Work work = WorkOf(*std::move(program), 3, 2);
    Bind(work, sim::InputKind::kState, "x", Shared(std::vector<double>(8000, 1.0), {8000}));
    const absl::Status status = RunOn(MakeHostShimDevice(), work).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const std::string which = of_initial ? "`initial`" : "the terminal cost";
    EXPECT_NE(status.message().find("the record of " + which), std::string::npos) << status;
  }
}

// Before the reversal starts, as when the engine looks whether it has room for it.
TEST(CudaRunTest, TheTapeIsThatOfAllBlocksAlsoBeforeTheReversal) {
  auto run = sim::MakeCudaExecutor(MakeHostShimDevice(), {.block = 1, .grid = 7})
                 ->Create(GradientWork().batch, sim::RunOptions{});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Start().ok());
  ASSERT_TRUE((*run)->Forward(0, 12).ok());
  ASSERT_TRUE((*run)->Finish().ok());
  const int64_t before = (*run)->AdjointBytes(0, 12);
  ASSERT_TRUE((*run)->StartAdjoint(1.0, {}).ok());
  EXPECT_EQ((*run)->AdjointBytes(0, 12), before);
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
