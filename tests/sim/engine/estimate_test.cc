// What admission counts, against the bytes that a run allocates: an upper bound, and not twice it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "sim/program/builder.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/work_maker.h"

namespace {

std::atomic<int64_t> held_bytes{0};
std::atomic<int64_t> most_bytes{0};

void* Counted(void* taken) {
  if (taken == nullptr) throw std::bad_alloc();
  const int64_t now = held_bytes += static_cast<int64_t>(malloc_usable_size(taken));
  int64_t most = most_bytes;
  while (now > most && !most_bytes.compare_exchange_weak(most, now)) {
  }
  return taken;
}

void Uncounted(void* given) {
  held_bytes -= static_cast<int64_t>(malloc_usable_size(given));
  std::free(given);
}

}  // namespace

// Of this whole program; the array forms call these.
void* operator new(size_t bytes) { return Counted(std::malloc(bytes)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* const taken = std::malloc(bytes);
  return taken == nullptr ? nullptr : Counted(taken);
}
void* operator new(size_t bytes, std::align_val_t line) {
  const size_t alignment = static_cast<size_t>(line);
  return Counted(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
}
void operator delete(void* given) noexcept { Uncounted(given); }
void operator delete(void* given, const std::nothrow_t&) noexcept { Uncounted(given); }
void operator delete(void* given, size_t) noexcept { Uncounted(given); }
void operator delete(void* given, std::align_val_t) noexcept { Uncounted(given); }
void operator delete(void* given, size_t, std::align_val_t) noexcept { Uncounted(given); }

namespace simgrad {
namespace {

using sim::Builder;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Vars;
using sim::Work;

// The bound is of a release build. Under a sanitizer threads meet less, so less is held at once.
#ifdef SIMGRAD_SANITIZED
constexpr int64_t kMostTimes = 3;
#else
constexpr int64_t kMostTimes = 2;
#endif

struct Size {
  int64_t instances = 1;
  int64_t steps = 1;
  int64_t elements = 1;
};

precision::Policy PolicyNamed(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  return tests::PolicyOf(spec);
}

std::vector<double> Spread(int64_t n) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(0.1 + 0.01 * static_cast<double>(i % 83));
  return values;
}

Work WorkOfWorld(const sim::Program& world, const std::string& preset, const std::string& objective,
                 const Size& size) {
  auto program = tests::LowerForGradient(world, PolicyNamed(preset), objective);
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), size.instances, size.steps);
  work.options.recording = sim::Recording::kSummary;
  work.options.threads = 2;
  return work;
}

Work Balls(const Size& size, bool gradient, const std::string& preset = "f32") {
  const auto world = sim::BuildWorld(
      "bouncing_ball", {{"clamp", false}, {"elements", static_cast<double>(size.elements)}});
  EXPECT_TRUE(world.ok()) << world.status();
  Work work = WorkOfWorld(*world, preset, gradient ? "final_height" : "", size);
  const int64_t n = size.instances;
  const int64_t e = size.elements;
  tests::Bind(work, InputKind::kState, "y", {tests::Doubles(Spread(n * e), {n, e}), true, false});
  tests::Bind(
      work, InputKind::kState, "v",
      {tests::Doubles(std::vector<double>(static_cast<size_t>(n * e)), {n, e}), true, false});
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({1.0}, {}));
  return work;
}

// A step of straight lines on many elements.
Work Sines(const Size& size, bool gradient, int sines = 8) {
  Builder b("sines");
  const Var x = b.State("x", {size.elements});
  const Var k = b.Param("k", {}, 0.5);
  Var y = x;
  for (int i = 0; i < sines; ++i) y = b.Apply(OpCode::kSin, {y});
  b.SetNext({y * k});
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  Work work = WorkOfWorld(*world, "f32", gradient ? "sum" : "", size);
  tests::Bind(work, InputKind::kState, "x", tests::Shared(Spread(size.elements), {size.elements}));
  return work;
}

struct Bytes {
  int64_t counted = 0;   // by the estimate
  int64_t more = 0;      // granted while it ran
  int64_t measured = 0;  // at most at a time
};

std::vector<std::string> Executors() {
#ifdef SIMGRAD_WITH_COMPILED
  return {"compiled"};
#else
  return {};  // the reference executor does not tell
#endif
}

constexpr double kManyIterations = 4000;

// Compiles of other cases are no part of a run: kernels are kept.
std::shared_ptr<sim::Executor> MakeExecutor() { return sim::MakeCpuExecutor(); }

class EstimateBytes : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EstimateBytes);

Bytes BytesOf(Work work) {
  const std::shared_ptr<sim::Executor> executor = MakeExecutor();
  // A compile is no part of a run, and its code is kept.
  {  // so that its plan is kept
    Work first = work;
    sim::Observer nobody;
    EXPECT_TRUE(sim::Engine(executor).Execute(std::move(first), nobody).ok());
  }
  const sim::Engine engine(executor);
  sim::Observer nobody;
  Bytes bytes;
  if (work.gradient) {
    work.reserve = [&bytes](int64_t more) {
      bytes.more += more;
      return true;
    };
  }
  const auto counted = sim::EstimateBytes(work, *executor);
  EXPECT_TRUE(counted.ok()) << counted.status();
  bytes.counted = *counted;
  const int64_t before = held_bytes;
  most_bytes = before;
  const auto result = engine.Execute(std::move(work), nobody);
  bytes.measured = most_bytes - before;
  EXPECT_TRUE(result.ok()) << result.status();
  return bytes;
}

void ExpectFits(const Bytes& bytes, const std::string& what) {
  EXPECT_GE(bytes.counted + bytes.more, bytes.measured) << what;
  constexpr int64_t kLarge = int64_t{16} << 20;
  if (bytes.measured > kLarge) {
    EXPECT_LE(bytes.counted + bytes.more, kMostTimes * bytes.measured) << what;
  }
}

std::string Text(const Size& size, bool gradient) {
  return std::to_string(size.instances) + " x " + std::to_string(size.steps) + " x " +
         std::to_string(size.elements) + (gradient ? " gradient" : " rollout");
}

TEST_P(EstimateBytes, OfABallGradientIsAtMostTwiceWhatItUsesAndNothingMoreIsAskedFor) {
  const Bytes bytes = BytesOf(Balls({4096, 2000, 1}, true));
  ExpectFits(bytes, "the ball");
  EXPECT_EQ(bytes.more, 0);
  EXPECT_LE(bytes.counted, kMostTimes * bytes.measured);
}

TEST_P(EstimateBytes, BoundsWhatARunAllocatesFromAboveAndWithinTwice) {
  for (const bool gradient : {false, true}) {
    for (const Size& size :
         {Size{1, 40, 1}, Size{17, 200, 3}, Size{1000, 40, 4}, Size{20'000, 8, 4}}) {
      for (const std::string preset : {"f32", "f16_safe"}) {
        ExpectFits(BytesOf(Balls(size, gradient, preset)),
                   "balls " + preset + " " + Text(size, gradient));
      }
    }
    for (const Size& size : {Size{1, 4, 1 << 16}, Size{40, 4, 4096}, Size{3, 100, 100}}) {
      ExpectFits(BytesOf(Sines(size, gradient)), "sines " + Text(size, gradient));
    }
  }
}

TEST_P(EstimateBytes, HoldsAtEveryLevelOfDiagnosticsAndForGivenIntervals) {
  using enum sim::Recording;
  for (const sim::Recording recording : {kNone, kCounts, kSummary}) {
    for (const int64_t interval : {0, 1, 7, 1000}) {
      Work work = Balls({3000, 100, 2}, true);
      work.options.recording = recording;
      work.checkpoint_interval = interval;
      ExpectFits(BytesOf(std::move(work)), "recording " +
                                               std::to_string(static_cast<int>(recording)) +
                                               " interval " + std::to_string(interval));
    }
  }
}

// Loops that hardly converge: what their records take is known after the forward run.
Work Stiff(double max_iter) {
  const auto world =
      sim::BuildWorld("boundary_projection", {{"elements", 64.0}, {"max_iter", max_iter}});
  EXPECT_TRUE(world.ok()) << world.status();
  Work work = WorkOfWorld(*world, "f32", "final_penetration", {512, 2, 64});
  tests::Bind(work, InputKind::kState, "y", tests::Shared(std::vector<double>(64, -1.0), {64}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({1e-9}, {}));
  return work;
}

TEST_P(EstimateBytes, ReserveIsAskedBeforeTheReverseForWhatTheIterationsTookAndItsNoEndsTheWork) {
  Work work = Stiff(kManyIterations);
  ExpectFits(BytesOf(work), "many iterations");
  std::vector<int64_t> asked;
  work.reserve = [&](int64_t more) {
    asked.push_back(more);
    return false;
  };
  struct Phases : sim::Observer {
    absl::Status Continue(sim::WorkPhase phase) override {
      reversed = reversed || phase != sim::WorkPhase::kForward;
      return absl::OkStatus();
    }
    bool reversed = false;
  } phases;
  const auto refused = sim::Engine(MakeExecutor()).Execute(work, phases);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_NE(refused.status().message().find("not free now"), std::string::npos);
  ASSERT_FALSE(asked.empty());
  EXPECT_GT(asked[0], 0);
  EXPECT_FALSE(phases.reversed);
}

TEST_P(EstimateBytes, ReserveWithoutItTheCapsAreCountedUpToTheBudget) {
  const auto executor = MakeExecutor();
  Work work = Stiff(kManyIterations);
  const int64_t caps = *sim::EstimateBytes(work, *executor);
  work.memory_budget_bytes = int64_t{32} << 20;
  const int64_t budget = *sim::EstimateBytes(work, *executor);
  work.reserve = [](int64_t) { return true; };
  const int64_t usual = *sim::EstimateBytes(work, *executor);
  EXPECT_GT(caps, budget);
  EXPECT_GT(budget, usual);
}

TEST_P(EstimateBytes, BudgetAStraightLineRecordThatCannotFitIsRefusedBeforeTheForwardRun) {
  struct Phases : sim::Observer {
    absl::Status Continue(sim::WorkPhase) override {
      asked = true;
      return absl::OkStatus();
    }
    bool asked = false;
  } phases;
  Work work = Sines({1, 4, 1 << 17}, true);
  work.memory_budget_bytes = int64_t{4} << 20;
  const auto refused = sim::Engine(MakeExecutor()).Execute(work, phases);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_FALSE(phases.asked);
}

INSTANTIATE_TEST_SUITE_P(Executors, EstimateBytes, ::testing::ValuesIn(Executors()),
                         [](const auto& executor) { return executor.param; });

}  // namespace
}  // namespace simgrad
