// A generated kernel that lacks one barrier gives other bits, and the comparison sees it. Where it
// gives the same, nothing could be seen, and a reason stands here. SIMGRAD_LONG=1 plants them all.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/environment.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using sim::cuda::Mapping;

// In functions of a plan and in kernels; the second where a block runs an instance.
constexpr std::string_view kBarriers[] = {"__syncthreads();", "I::Sync();"};
// Several warps for an instance; several warps, and several passes over instances.
int ThreadsOf(Mapping mapping) { return mapping == Mapping::kBlockPerInstance ? 96 : 64; }
// Orders of threads that are tried before a barrier counts as not missed.
constexpr uint64_t kSeeds = 3;

// A barrier of a text, with what stands around it.
struct Place {
  size_t at = 0;
  size_t size = 0;
  std::string function;
  std::string before, after;  // lines
};

std::string LineAt(const std::string& text, size_t begin) {
  const size_t first = text.find_first_not_of(" \n", begin);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find('\n', first) - first);
}

// The name before the first bracket of the function around.
std::string FunctionAround(const std::string& text, size_t at) {
  const size_t head = text.rfind("__device__ ", at);
  const size_t end = text.find('(', head);
  const size_t begin = text.find_last_of(" &", end) + 1;
  return text.substr(begin, end - begin);
}

std::vector<Place> BarriersIn(const std::string& text, Mapping mapping) {
  std::vector<Place> places;
  for (const std::string_view barrier : kBarriers) {
    if (mapping == Mapping::kThreadPerInstance && barrier != kBarriers[0]) continue;
    for (size_t at = text.find(barrier); at != std::string::npos; at = text.find(barrier, at + 1)) {
      Place place = {at, barrier.size(), FunctionAround(text, at), "", ""};
      place.after = LineAt(text, at + barrier.size());
      const size_t end = text.find_last_not_of(" \n", at - 1);
      place.before = LineAt(text, text.rfind('\n', end) + 1);
      places.push_back(place);
    }
  }
  return places;
}

// The line stays, so that lines keep their numbers.
std::string WithoutBarrier(std::string text, const Place& place) {
  return text.replace(place.at, place.size, ";");
}

// Barriers that this program does not need, though others do: the generator does not look so far.
struct Spare {
  std::optional<Mapping> mapping;       // none: both
  std::string function, before, after;  // what it, and the lines around, begin with; empty: any
  std::string reason;
};
const std::vector<Spare>& Spares() {
  static const std::vector<Spare> spares = {
      {Mapping::kThreadPerInstance, "Sync", "", "", "a block per instance alone waits there"},
      {Mapping::kThreadPerInstance, "OpenTurns", "", "", "a block per instance alone calls it"},
      {Mapping::kThreadPerInstance, "CloseTurns", "", "", "a block per instance alone calls it"},
      {Mapping::kBlockPerInstance, "OpenTurns", "", "",
       "no loop of the ball pushes from its turns: AroundTurnsThatPush; there another barrier "
       "stands "
       "between two such loops"},
      {Mapping::kBlockPerInstance, "CloseTurns", "", "",
       "no loop of the ball pushes from its turns: AroundTurnsThatPush"},
      {Mapping::kBlockPerInstance, "StartKernel", "self.CheckSent();", "",
       "the ball has no region `initial`: AroundStepsThatReadAcross"},
      {Mapping::kBlockPerInstance, "FinishAdjointKernel", "self.SetSent();", "",
       "the ball has no region `initial`: AroundStepsThatReadAcross"},
      {Mapping::kBlockPerInstance, "Replay", "self.read_time = self.t;", "",
       "the ball reads no state across threads: AroundStepsThatReadAcross"},
      {Mapping::kBlockPerInstance, "ForwardKernel", "", "if (writes)",
       "the ball reads no state across threads: AroundStepsThatReadAcross"},
      {Mapping::kBlockPerInstance, "ForwardKernel", "}", "}",
       "the first step of a window has barriers before its first record"},
      {Mapping::kBlockPerInstance, "ForwardKernel", "if (records) {", "LeaveWindow(",
       "the ring is not recorded"},
      {Mapping::kBlockPerInstance, "RunReverseTerminal", "", "const float r3",
       "the terminal cost runs again for its tape; the sum itself goes nowhere"},
      {Mapping::kBlockPerInstance, "RunRe", "", "for (int64_t k",
       "memory is used again, and each element by the thread that used it before"},
      {Mapping::kBlockPerInstance, "AdjointKernel", "OnColumns(", "",
       "columns are cleared before a replay full of barriers"},
      {Mapping::kBlockPerInstance, "AdjointKernel", "", "LeaveColumn(",
       "the health of a reversed step was joined behind a barrier"},
      {Mapping::kBlockPerInstance, "AdjointKernel", "if (self.live) self.StoreReversed();", "",
       "the replay of the next instance has barriers before anything is joined"},
  };
  return spares;
}

const Spare* SpareAt(const Place& place, Mapping mapping) {
  for (const Spare& spare : Spares()) {
    const auto fits = [](const std::string& line, const std::string& start) {
      return line.compare(0, start.size(), start) == 0;
    };
    if (spare.mapping.value_or(mapping) == mapping && fits(place.function, spare.function) &&
        fits(place.before, spare.before) && fits(place.after, spare.after)) {
      return &spare;
    }
  }
  return nullptr;
}

// A work, and what the reference makes of it.
struct Known {
  sim::Work work;
  sim::equality::Observed observed;
};

// Whether the kernels without this barrier give other bits, or none, in some order of threads.
bool Differs(const Known& known, Mapping mapping, const Place& place) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto device = MakeHostShimDevice({.seed = seed, .plant = [&](const std::string& text) {
                                              return WithoutBarrier(WithKernels(text), place);
                                            }});
    const auto actual = sim::equality::Observe(
        std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
            device, {.mapping = mapping, .block = ThreadsOf(mapping), .grid = 1})),
        known.work);
    if (!actual.ok() || sim::equality::FirstDifference(known.observed, *actual)) {
      return true;
    }
  }
  return false;
}

// In a process of its own: a place on the tape that was read too early leads anywhere.
bool IsSeen(const Known& known, Mapping mapping, const Place& place) {
  const pid_t child = fork();
  if (child == 0) _exit(Differs(known, mapping, place) ? 1 : 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

absl::StatusOr<Known> KnownOf(sim::Work work) {
  auto observed = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  if (!observed.ok()) return observed.status();
  return Known{std::move(work), *std::move(observed)};
}

// An objective whose cotangents are nowhere zero, so that a sum over stale ones differs.
// Its 31 steps take two windows of a record, and both columns of the reverse begin a pass.
sim::Work BallWork(int64_t instances) {
  const WorldCase world = WorldCases(9)[0];
  return WorkOfCase(*LowerForGradient(*sim::BuildWorld(world.world, world.config),
                                      PolicyOf({.preset = "f32"}), "final_height"),
                    instances, 31);
}

// Each number follows its neighbour, from the start on; nothing is recorded, so nothing else waits.
sim::Work RingWork(const std::string& objective) {
  constexpr int64_t kNumbers = 40;
  sim::Builder b("ring");
  const sim::Var x = b.State("x", {kNumbers});
  const sim::Var k = b.Param("k", {}, 0.75);
  const auto moved = [&](const sim::Var& from) {
    return b.Concat({b.Slice(from, {1}, {kNumbers - 1}), b.Slice(from, {0}, {1})}, 0);
  };
  b.SetInitial([&] { return sim::Vars{moved(x) * k}; });
  b.SetNext({moved(x) * k + x});
  b.AddObjective(
      "cost", [&] { return b.Reduce(sim::OpCode::kSum, x * x); }, nullptr);
  sim::Work work =
      WorkOf(*LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), objective), 3, 6);
  work.options.recording = sim::Recording::kNone;
  sim::Tensor sent = sim::Tensor::Zeros(sim::DType::kF32, {3, kNumbers});
  for (int64_t i = 0; i < 3 * kNumbers; ++i) sent.Set(i, 1.0 + 0.01 * static_cast<double>(i));
  Bind(work, sim::InputKind::kState, "x", {sent, true, false});
  return work;
}

sim::Work LoopPerElementWork() {
  const WorldCase world = WorldCases(9)[1];
  return WorkOfCase(*LowerForGradient(*sim::BuildWorld(world.world, world.config),
                                      PolicyOf({.preset = "f32"}), "final_height"),
                    6, 5);
}

struct Counts {
  size_t planted = 0, caught = 0, spare = 0;
};

// Plants a missing barrier at up to `most` places of the kernels, evenly over the text. `name`: only
// in functions that begin so.
Counts ExpectCaught(const sim::Work& work, Mapping mapping, size_t most, const std::string& name) {
  Counts counts;
  const absl::StatusOr<Known> known = KnownOf(work);
  EXPECT_TRUE(known.ok()) << known.status();
  if (!known.ok()) return counts;
  sim::cuda::GenerateOptions options;
  options.mapping = mapping;
  options.recording = work.options.recording == sim::Recording::kCounts ? sim::Recording::kSummary
                                                                        : work.options.recording;
  for (const sim::Binding& binding : work.batch.inputs) {
    options.per_step.push_back(binding.per_step);
  }
  const auto source = sim::cuda::Generate(*work.batch.program, options);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return counts;
  EXPECT_FALSE(IsSeen(*known, mapping, Place())) << "without a fault the bits differ, too";
  std::vector<Place> places = BarriersIn(WithKernels(source->text), mapping);
  std::erase_if(places, [&](const Place& place) {
    return place.function.compare(0, name.size(), name) != 0;
  });
  if (IsLong()) most = places.size();
  counts.planted = std::min(most, places.size());
  for (size_t k = 0; k < counts.planted; ++k) {
    const Place& place = places[k * places.size() / counts.planted];
    const bool seen = IsSeen(*known, mapping, place);
    counts.caught += seen ? 1 : 0;
    if (seen) continue;
    const Spare* spare = SpareAt(place, mapping);
    counts.spare += spare != nullptr ? 1 : 0;
    EXPECT_NE(spare, nullptr) << "not missed, and no reason is known: in " << place.function
                              << " between\n  " << place.before << "\n  " << place.after;
  }
  std::cout << MappingName(mapping) << ": " << counts.caught << " of " << counts.planted
            << " missing barriers caught, " << counts.spare << " not needed\n";
  return counts;
}

TEST(MissingBarrierTest, IsCaughtWithAThreadPerInstance) {
  const Counts counts = ExpectCaught(BallWork(70), Mapping::kThreadPerInstance, 6, "");
  EXPECT_GE(5 * counts.caught, 2 * counts.planted);
}

TEST(MissingBarrierTest, IsCaughtWithABlockPerInstance) {
  const Counts counts = ExpectCaught(BallWork(6), Mapping::kBlockPerInstance, 6, "");
  EXPECT_GE(5 * counts.caught, 2 * counts.planted);
}

// The kernels themselves, where a program needs their barriers.
TEST(MissingBarrierTest, IsCaughtAroundStepsThatReadAcross) {
  const sim::Work work = RingWork("cost");
  for (const std::string name : {"StartKernel", "Replay", "FinishAdjointKernel"}) {
    const Counts counts = ExpectCaught(work, Mapping::kBlockPerInstance, 4, name);
    EXPECT_GT(counts.planted, 0u) << name;
    EXPECT_EQ(counts.caught, counts.planted) << name;
  }
  // Without a gradient no tape is metered, for which the threads of a warp wait.
  const Counts counts = ExpectCaught(RingWork(""), Mapping::kBlockPerInstance, 4, "ForwardKernel");
  EXPECT_EQ(counts.caught, 1u);
}

TEST(MissingBarrierTest, IsCaughtAroundTurnsThatPush) {
  const sim::Work work = LoopPerElementWork();
  for (const std::string name : {"OpenTurns", "CloseTurns"}) {
    const Counts counts = ExpectCaught(work, Mapping::kBlockPerInstance, 2, name);
    EXPECT_GT(counts.caught, 0u) << name;
  }
}

}  // namespace
}  // namespace simgrad::tests
