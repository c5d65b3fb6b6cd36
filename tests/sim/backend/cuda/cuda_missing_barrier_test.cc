// A generated kernel that lacks one barrier gives other bits, and the comparison sees it. Where it
// gives the same, nothing could be seen: each such place stands here, with its reason. SIMGRAD_LONG=1
// plants a missing barrier everywhere, there too.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
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

// A barrier that a program does not need, though others do: the generator does not look so far.
struct Spare {
  std::string function, before, after;  // of the place; lines without the numbers of registers
  std::string reason;
};
using Spares = std::vector<Spare>;

// "r60 = k59" becomes "r = k": a change elsewhere in a text moves the numbers.
std::string WithoutRegisters(const std::string& line) {
  std::string plain;
  bool numbers = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto is_word = [&](size_t k) {
      return std::isalnum(static_cast<unsigned char>(line[k])) != 0 || line[k] == '_';
    };
    const bool digit = std::isdigit(static_cast<unsigned char>(line[i])) != 0;
    if (numbers && digit) continue;
    numbers = (line[i] == 'r' || line[i] == 'k') && (i == 0 || !is_word(i - 1));
    plain += line[i];
  }
  return plain;
}

bool IsAt(const Spare& spare, const Place& place) {
  return place.function == spare.function && WithoutRegisters(place.before) == spare.before &&
         WithoutRegisters(place.after) == spare.after;
}

bool IsSpare(const Place& place, const Spares& spares) {
  return std::any_of(spares.begin(), spares.end(),
                     [&](const Spare& spare) { return IsAt(spare, place); });
}

const std::string kOpensTurns = "__device__ void OpenTurns() {";
const std::string kSetsTop = "if (threadIdx.x == 0) shared.tape_top = tape.top;";
const std::string kClosesTurns = "__device__ void CloseTurns() {";
const std::string kReadsTop = "tape.top = shared.tape_top;";
const std::string kClearsColumns =
    "OnColumns(self.shared.backward, self.shared.backward, 2, ClearWord{});";
const std::string kNineTurns = "for (int64_t k = threadIdx.x; k < 9; k += blockDim.x) {";

Spares OfBallByThreads() {
  const std::string reason = "a block per instance alone calls it";
  return {{"Sync", "if constexpr (kBlock) __syncthreads();", "}", reason},
          {"OpenTurns", kOpensTurns, kSetsTop, reason},
          {"OpenTurns", kSetsTop, "}", reason},
          {"CloseTurns", kClosesTurns, kReadsTop, reason}};
}

Spares OfBallByBlocks() {
  const std::string turns = "no loop of the ball pushes from its turns: AroundTurnsThatPush";
  const std::string initial = "the ball has no region `initial`: AroundStepsThatReadAcross";
  const std::string across = "the ball reads no state across threads: AroundStepsThatReadAcross";
  const std::string again =
      "memory is used again, and each element by the thread that used it before";
  return {{"OpenTurns", kOpensTurns, kSetsTop, turns},
          {"OpenTurns", kSetsTop, "}", turns},
          {"CloseTurns", kClosesTurns, kReadsTop, turns},
          {"StartKernel", "self.CheckSent();", "RunStart(self);", initial},
          {"FinishAdjointKernel", "self.SetSent();", "self.OpenEntry();", initial},
          {"Replay", "self.read_time = self.t;", "const int64_t frame = RunReplay(self);", across},
          {"ForwardKernel", "}", "if (writes) self.WriteTrajectories(column);", across},
          {"ForwardKernel", "}", "}",
           "its step has barriers before its first run of a loop ends: WhereAStepBeginsWithALoop"},
          {"RunReverse", "const bool r = self.f28;", kNineTurns, again},
          {"RunReverse", "self.f28 = r;", kNineTurns, again},
          {"RunReverseLast", "const bool r = self.f28;", kNineTurns, again},
          {"RunReverseLast", "self.f28 = r;", kNineTurns, again},
          {"AdjointKernel", kClearsColumns, "EachInstance(self, [&](bool first_pass) {",
           "all wait behind the replay before they join to a column"},
          {"AdjointKernel", "}", "LeaveColumn(self, column, first_pass);",
           "all wait in JudgeReversed, behind which nothing is joined to a column"},
          {"AdjointKernel", "if (self.live) self.StoreReversed();", "});",
           "all wait behind the next replay before they join to a column"}};
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

// A loop that ends before any barrier of the step: its run is counted in the slot of the step.
sim::Work LoopFirstWork() {
  sim::Builder b("loop_first");
  const sim::Var x = b.State("x", {});
  const sim::LoopResult loop = b.While(
      {.site = "halves", .max_iter = 5}, {x}, {},
      [&](const sim::Vars& now, const sim::Vars&) -> sim::LoopTest {
        return {now[0], b.Literal(0.5), {}, {}};
      },
      [&](const sim::Vars& now, const sim::Vars&, const sim::Vars&) -> sim::Vars {
        return {0.5 * now[0]};
      });
  b.SetNext({x + loop.carried[0]});
  sim::Work work = WorkOf(*LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), ""), 6, 31);
  Bind(work, sim::InputKind::kState, "x", {Doubles({1, 2, 3, 4, 5, 6}, {6}), true, false});
  return work;
}

// A loop per element in a loop: both push, the inner one from its turns. Between two of its runs the
// outer loop pushes a frame, and nothing waits but what turns wait for.
sim::Work TurnsInALoopWork() {
  constexpr int64_t kNumbers = 40;
  sim::Builder b("turns_in_a_loop");
  const auto squares = [&](const sim::Var& x) {
    return b
        .While(
            {.site = "squares", .max_iter = 5, .elements = kNumbers}, {x}, {},
            [&](const sim::Vars& now, const sim::Vars&) -> sim::LoopTest {
              return {now[0], b.Literal(0.1), {}, {}};
            },
            [&](const sim::Vars& now, const sim::Vars&, const sim::Vars&) -> sim::Vars {
              return {0.75 * now[0] * now[0]};
            })
        .carried[0];
  };
  const sim::Var x = b.State("x", {kNumbers});
  const sim::Var left = b.State("left", {});
  const sim::LoopResult outer = b.While(
      {.site = "halves", .max_iter = 4}, {left, x}, {},
      [&](const sim::Vars& now, const sim::Vars&) -> sim::LoopTest {
        return {now[0], b.Literal(0.5), {}, {}};
      },
      [&](const sim::Vars& now, const sim::Vars&, const sim::Vars&) -> sim::Vars {
        return {0.5 * now[0], now[1] + squares(now[1])};
      });
  b.SetNext({outer.carried[1], left});
  b.AddObjective("cost", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    return b.Reduce(sim::OpCode::kSum, states[0] * states[0]);
  });
  sim::Work work =
      WorkOf(*LowerForGradient(*b.Finish(), PolicyOf({.preset = "f32"}), "cost"), 3, 4);
  sim::Tensor sent = sim::Tensor::Zeros(sim::DType::kF64, {3, kNumbers});
  for (int64_t i = 0; i < 3 * kNumbers; ++i) sent.Set(i, 0.004 * static_cast<double>(i));
  Bind(work, sim::InputKind::kState, "x", {sent, true, false});
  Bind(work, sim::InputKind::kState, "left", Shared({4.0}, {}));
  return work;
}

// Plants a missing barrier at up to `most` places of the kernels, evenly over the text; under
// SIMGRAD_LONG at all. Those of `spares` are not missed, all others are. `name`: only in functions
// that begin so. Returns how many were missed.
size_t ExpectCaught(const sim::Work& work, Mapping mapping, size_t most, const std::string& name,
                    const Spares& spares) {
  const absl::StatusOr<Known> known = KnownOf(work);
  EXPECT_TRUE(known.ok()) << known.status();
  if (!known.ok()) return 0;
  sim::cuda::GenerateOptions options;
  options.mapping = mapping;
  options.recording = work.options.recording == sim::Recording::kCounts ? sim::Recording::kSummary
                                                                        : work.options.recording;
  for (const sim::Binding& binding : work.batch.inputs) {
    options.per_step.push_back(binding.per_step);
  }
  const auto source = sim::cuda::Generate(*work.batch.program, options);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return 0;
  EXPECT_FALSE(IsSeen(*known, mapping, Place())) << "without a fault the bits differ, too";
  std::vector<Place> places = BarriersIn(WithKernels(source->text), mapping);
  std::erase_if(places, [&](const Place& place) {
    return place.function.compare(0, name.size(), name) != 0;
  });
  const auto text_of = [](const Place& place) {
    return place.function + " between\n  " + place.before + "\n  " + place.after;
  };
  for (const Spare& spare : spares) {
    const auto at = [&](const Place& place) { return IsAt(spare, place); };
    EXPECT_EQ(std::count_if(places.begin(), places.end(), at), 1)
        << "the excuse is that of no place, or of several: " << spare.function << " between\n  "
        << spare.before << "\n  " << spare.after;
    const auto place = std::find_if(places.begin(), places.end(), at);
    if (!IsLong() || place == places.end()) continue;
    EXPECT_FALSE(IsSeen(*known, mapping, *place)) << "is missed: " << text_of(*place);
  }
  std::erase_if(places, [&](const Place& place) { return IsSpare(place, spares); });
  if (IsLong()) most = places.size();
  const size_t planted = std::min(most, places.size());
  size_t caught = 0;
  for (size_t k = 0; k < planted; ++k) {
    const Place& place = places[k * places.size() / planted];
    const bool seen = IsSeen(*known, mapping, place);
    caught += seen ? 1 : 0;
    EXPECT_TRUE(seen) << "not missed, and no reason is known: in " << text_of(place);
  }
  std::cout << MappingName(mapping) << ": " << caught << " of " << planted
            << " missing barriers caught, " << spares.size() << " not needed\n";
  return caught;
}

TEST(MissingBarrierTest, IsCaughtWithAThreadPerInstance) {
  EXPECT_GE(ExpectCaught(BallWork(70), Mapping::kThreadPerInstance, 3, "", OfBallByThreads()), 3u);
}

TEST(MissingBarrierTest, IsCaughtWithABlockPerInstance) {
  EXPECT_GE(ExpectCaught(BallWork(6), Mapping::kBlockPerInstance, 4, "", OfBallByBlocks()), 4u);
}

// The kernels themselves, where a program needs their barriers.
TEST(MissingBarrierTest, IsCaughtAroundStepsThatReadAcross) {
  const sim::Work work = RingWork("cost");
  for (const std::string name : {"StartKernel", "Replay", "FinishAdjointKernel"}) {
    EXPECT_EQ(ExpectCaught(work, Mapping::kBlockPerInstance, 1, name, {}), 1u) << name;
  }
  // Without a gradient no tape is metered, for which the threads of a warp wait.
  const std::string reason = "the ring is not recorded";
  const Spares spares = {
      {"ForwardKernel", "}", "}", reason},
      {"ForwardKernel", "if (records) {", "LeaveWindow(self, begin, end);", reason}};
  EXPECT_EQ(ExpectCaught(RingWork(""), Mapping::kBlockPerInstance, 1, "ForwardKernel", spares), 1u);
}

TEST(MissingBarrierTest, IsCaughtWhereAStepBeginsWithALoop) {
  const Spares spares = {{"ForwardKernel", "}", "if (writes) self.WriteTrajectories(column);",
                          "each thread has the state"}};
  EXPECT_EQ(ExpectCaught(LoopFirstWork(), Mapping::kBlockPerInstance, 2, "ForwardKernel", spares),
            2u);
}

TEST(MissingBarrierTest, IsCaughtAroundTurnsThatPush) {
  const sim::Work work = TurnsInALoopWork();
  EXPECT_EQ(ExpectCaught(work, Mapping::kBlockPerInstance, 2, "OpenTurns", {}), 2u);
  EXPECT_EQ(ExpectCaught(work, Mapping::kBlockPerInstance, 1, "CloseTurns", {}), 1u);
}

}  // namespace
}  // namespace simgrad::tests
