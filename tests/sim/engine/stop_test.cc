// How soon a run ends that was asked to: looks are counted against element-operations, everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#ifdef SIMGRAD_WITH_COMPILED
#include "sim/backend/compiled/compiled_executor.h"
#endif
#include "sim/program/builder.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/sim/equality/forwarding_run.h"
#include "tests/sim/work_maker.h"
#include "tests/thread_time.h"

namespace simgrad {
namespace {

using sim::Builder;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Vars;
using sim::Work;
using sim::WorkPhase;

constexpr int64_t kMillion = int64_t{1} << 20;
constexpr int64_t kSide = 128;  // of a matrix

Var Sines(Builder& b, Var x, int count) {
  for (int i = 0; i < count; ++i) x = b.Apply(OpCode::kSin, {x});
  return x;
}

// Where the sines of a program stand.
struct Sines3 {
  int initial = 0, step = 0, terminal = 0;
  bool divides = false;  // in front of those of the step, x by itself; behind them by zero
};

// One state of `elements`; the objective is the sum of what the terminal sines make of it.
Work SineWork(int64_t elements, const Sines3& sines, int64_t instances, int64_t steps) {
  Builder b("sines");
  const Var x = b.State("x", {elements});
  const Var k = b.Param("k", {}, 0.5);
  if (sines.initial > 0) {
    b.SetInitial([&]() -> Vars { return {Sines(b, x, sines.initial)}; });
  }
  const Var next = Sines(b, sines.divides ? x / x : x, sines.step) * k;
  b.SetNext({sines.divides ? next / (x - x) : next});
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, Sines(b, states[0], sines.terminal));
  });
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  precision::PolicySpec f32;
  f32.preset = "f32";
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(f32), "sum");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), instances, steps);
  work.options.recording = sim::Recording::kSummary;
  tests::Bind(work, InputKind::kState, "x",
              tests::Shared(std::vector<double>(static_cast<size_t>(elements), 0.25), {elements}));
  return work;
}

// Knows the phase, and ends it a while after it began.
class Watch : public sim::Observer {
 public:
  absl::Status Continue(WorkPhase now) override {
    if (phase != now) began = ThreadTime();
    phase = now;
    return Late() ? absl::DeadlineExceededError("late") : absl::OkStatus();
  }
  bool Late() const { return phase == ends && ThreadTime() - began > patience; }
  WorkPhase phase = WorkPhase::kForward;
  Milliseconds began = ThreadTime();
  WorkPhase ends = WorkPhase::kForward;
  Milliseconds patience = std::chrono::hours(1);
};

std::vector<std::string> Executors() {
#ifdef SIMGRAD_WITH_COMPILED
  return {"reference", "compiled"};
#else
  return {"reference"};
#endif
}

class Stop : public ::testing::TestWithParam<std::string> {
 protected:
  static std::shared_ptr<sim::Executor> MakeExecutor() {
#ifdef SIMGRAD_WITH_COMPILED
    static const std::shared_ptr<sim::Executor> compiled = sim::compiled::MakeCompiledExecutor();
    if (GetParam() == "compiled") return compiled;
#endif
    return sim::MakeReferenceExecutor();
  }
  static sim::Engine MakeEngine() { return sim::Engine(MakeExecutor()); }
  // How often the caller is asked, by phase.
  static std::array<int64_t, 3> LooksOf(Work work) {
    Watch watch;
    std::array<int64_t, 3> looks{};
    work.options.threads = 1;
    // Who waits for a compile is asked too: afterwards there is none.
    if (GetParam() == "compiled") {
      sim::Observer nobody;
      EXPECT_TRUE(MakeEngine().Execute(work, nobody).ok());
    }
    work.options.stop = [&] {
      ++looks[static_cast<size_t>(watch.phase)];
      return false;
    };
    const auto result = MakeEngine().Execute(std::move(work), watch);
    EXPECT_TRUE(result.ok()) << result.status();
    return looks;
  }
  static int64_t All(const std::array<int64_t, 3>& looks) { return looks[0] + looks[1] + looks[2]; }
};

TEST_P(Stop, IsAskedForAtLeastOncePerMillionElementOperationsInEveryPhase) {
  constexpr int64_t kInstances = 16;
  constexpr int64_t kElements = 1 << 10;
  constexpr int64_t kNumbers = kInstances * kElements;
  constexpr int64_t kSteps = kSanitized ? 1 : 4;
  constexpr int kSines = 128;
  const auto step = LooksOf(SineWork(kElements, {0, kSines, 0}, kInstances, kSteps));
  EXPECT_GE(step[0], kSteps * kSines * kNumbers / kMillion);
  // The replay and its reverse.
  EXPECT_GE(step[1] + step[2], 2 * kSteps * kSines * kNumbers / kMillion);
  constexpr int kOnce = kSanitized ? 128 : 512;
  for (const Sines3& once : {Sines3{kOnce, 0, 0}, Sines3{0, 0, kOnce}}) {
    const auto looks = LooksOf(SineWork(kElements, once, kInstances, 1));
    EXPECT_GE(looks[0], kOnce * kNumbers / kMillion) << once.initial;
    EXPECT_GE(All(looks), 3 * kOnce * kNumbers / kMillion) << once.initial;
  }
}

TEST_P(Stop, IsAskedForInsideEveryOperation) {
  constexpr int64_t kElements = 1 << 18;
  using Apply = std::function<Var(Builder&, Var)>;
  const auto reduced = [](Builder& b, Var sum) { return b.Broadcast(sum, {kElements}, {}); };
  // What costs more than its elements takes a part of them.
  const auto of_part = [](int64_t n, const std::function<Var(Builder&, Var)>& apply) -> Apply {
    return [n, apply](Builder& b, Var x) {
      const Var part = b.Reshape(apply(b, b.Slice(x, {0}, {n})), {n});
      return b.Concat({part, b.Slice(x, {n}, {kElements - n})}, 0);
    };
  };
  const auto of_matrix = [&](const std::function<Var(Builder&, Var)>& apply) {
    return of_part(kSide * kSide, [apply](Builder& b, Var part) {
      std::vector<double> diagonal(kSide * kSide, 0.0);
      for (int64_t i = 0; i < kSide; ++i) diagonal[static_cast<size_t>(i * (kSide + 1))] = kSide;
      return apply(b, b.Reshape(part, {kSide, kSide}) + b.LiteralArray(diagonal, {kSide, kSide}));
    });
  };
  const std::vector<std::pair<std::string, Apply>> operations = {
      {"matmul", of_matrix([](Builder& b, Var a) {
         const Var batch = b.Reshape(a, {1, kSide, kSide});
         return b.Do(OpCode::kMatmul, {batch, batch});
       })},
      {"cholesky", of_matrix([](Builder& b, Var a) { return b.Do(OpCode::kCholesky, {a}); })},
      {"lu", of_matrix([](Builder& b, Var a) { return b.Do(OpCode::kLu, {a}); })},
      {"triangular_solve", of_matrix([](Builder& b, Var a) {
         return b.Do(OpCode::kTriangularSolve, {a, a});
       })},
      {"argsort", of_part(1 << 10,
                          [](Builder& b, Var x) {
                            const Var order = b.Do(OpCode::kArgsort, {x}, {.axes = {0}});
                            return b.Convert(order, sim::ElementType::kReal);
                          })},
      {"gather",
       [](Builder& b, Var x) {
         return b.Do(OpCode::kGather, {x, b.Iota({kElements}, 0)},
                     {.axes = {0}, .bounds = sim::Bounds::kClip});
       }},
      {"scatter",
       [](Builder& b, Var x) {
         return b.Do(OpCode::kScatter, {x, b.Iota({kElements}, 0), x},
                     {.axes = {0}, .bounds = sim::Bounds::kDrop, .combine = sim::Combine::kAdd});
       }},
      {"cumsum", of_part(1 << 10, [](Builder& b, Var x) { return b.Cumsum(x, 0); })},
      {"prod", [&](Builder& b, Var x) { return reduced(b, b.Reduce(OpCode::kProd, x)); }},
      {"sin", [](Builder& b, Var x) { return b.Apply(OpCode::kSin, {x}); }},
      {"pow",
       [](Builder& b, Var x) {
         return b.Apply(OpCode::kPow, {x, x});
       }},
      {"add",
       [](Builder& b, Var x) {
         return b.Apply(OpCode::kAdd, {x, x});
       }},
      {"concat",
       [](Builder& b, Var x) {
         const Var half = b.Slice(x, {kElements / 2}, {kElements / 2});
         return b.Concat({half, half}, 0);
       }},
      {"sum", [&](Builder& b, Var x) { return reduced(b, b.Reduce(OpCode::kSum, x)); }},
      {"reduce_max",
       [&](Builder& b, Var x) { return reduced(b, b.Reduce(OpCode::kReduceMax, x)); }},
      {"sums of pairs",
       [&](Builder& b, Var x) {
         const Var sums = b.Reduce(OpCode::kSum, b.Reshape(x, {kElements / 2, 2}), {1});
         return b.Concat({sums, sums}, 0);
       }},
      {"event",
       [](Builder& b, Var x) {
         const Var below = b.Event("low" + std::to_string(static_cast<int>(x.id)), x,
                                   sim::Comparison::kLt, b.Literal(0.0, {kElements}));
         return b.Apply(OpCode::kSelect, {below, x, x});
       }},
  };
  const auto looks_of = [&](const Apply& apply) {
    Builder b("one");
    const Var x = b.State("x", {kElements});
    b.SetNext({apply(b, x)});
    auto world = b.Finish();
    EXPECT_TRUE(world.ok()) << world.status();
    precision::PolicySpec f32;
    f32.preset = "f32";
    auto program = tests::LowerForGradient(*world, tests::PolicyOf(f32), "");
    EXPECT_TRUE(program.ok()) << program.status();
    Work work = tests::WorkOf(*std::move(program), 1, 1);
    work.options.recording = sim::Recording::kSummary;
    tests::Bind(work, InputKind::kState, "x", tests::Shared({0.25}, {1}));
    work.batch.inputs[0] =
        tests::Shared(std::vector<double>(static_cast<size_t>(kElements), 0.25), {kElements});
    return All(LooksOf(std::move(work)));
  };
  // What goes in and comes out is looked at, too.
  EXPECT_GE(looks_of([](Builder&, Var x) { return x; }), 4);
  for (size_t i = 0; i < operations.size(); i += kSanitized ? 9 : 1) {
    const auto& operation = operations[i];
    const Apply& apply = operation.second;
    const int64_t once = looks_of(apply);
    const auto twice = [&](Builder& b, Var x) { return apply(b, apply(b, x)); };
    EXPECT_GE(looks_of(twice), once + 2) << operation.first;
  }
}

// On an idle core within 100 ms, which SIMGRAD_LONG=1 asserts; else with fivefold slack.
TEST_P(Stop, AfterItTheRunEndsSoonInStraightLineSteps) {
  const Milliseconds most(IsLong() ? 100 : 500);
  const int sines = kSanitized && GetParam() == "reference" ? 60 : 200;
  for (const WorkPhase phase : {WorkPhase::kForward, WorkPhase::kRecompute, WorkPhase::kAdjoint}) {
    for (const int64_t chunk_steps : {1, 0}) {
      const bool forward = phase == WorkPhase::kForward;
      Work work = SineWork(1 << 16, {0, sines, 0}, 1, forward ? 1000 : 2);
      if (phase == WorkPhase::kRecompute) work.checkpoint_interval = 2;
      Watch watch;
      watch.ends = phase;
      // The replay of a step, 13 million sines, takes 8 ms where a vector has 512 bits.
      watch.patience = std::chrono::milliseconds(2);
      work.chunk_steps = chunk_steps;
      if (phase == WorkPhase::kRecompute) work.chunk_steps = 1;
      work.options.threads = 1;
      work.options.stop = [&] { return watch.Late(); };
      const auto result = MakeEngine().Execute(std::move(work), watch);
      const Milliseconds over = ThreadTime() - watch.began - watch.patience;
      EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
      RecordProperty("over_us_" + std::to_string(static_cast<int>(phase)) + "_chunk_" +
                         std::to_string(chunk_steps),
                     std::to_string(static_cast<int>(1e3 * over.count())));
      EXPECT_LT(over, most) << static_cast<int>(phase) << " " << chunk_steps;
    }
  }
}

// Looks of a rollout with a birth in its first step.
int64_t LooksUntilBorn(sim::Engine engine, Work& work, int64_t last) {
  int64_t looks = 0;
  work.options.stop = [&] { return ++looks >= last; };
  sim::Observer nobody;
  const auto outcome = engine.Execute(work, nobody);
  EXPECT_EQ(outcome.status().code(),
            looks >= last ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
  if (outcome.ok()) {
    EXPECT_EQ(outcome->certificates.size(), 1u);
  }
  return looks;
}

Work BornWork(bool late) {
  Work work = SineWork(1 << 12, {0, 64, 0, true}, 1, 2);
  work.gradient.reset();
  work.options.threads = 1;
  // An element is born in the first operation, or all of them in the last.
  if (!late) work.batch.inputs[0].tensor.Set(0, 0.0);
  return work;
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

TEST_P(Stop, EndsTheReplayForABirthCertificate) {
  Work work = BornWork(true);
  // Who waits for a compile is asked too: afterwards there is none.
  LooksUntilBorn(MakeEngine(), work, kNever);
  // The replay is the last thing that runs.
  const int64_t looks = LooksUntilBorn(MakeEngine(), work, kNever);
  EXPECT_EQ(LooksUntilBorn(MakeEngine(), work, looks), looks);
}

TEST_P(Stop, IsNotAskedBehindABirth) {
  int64_t looks[2];
  for (const bool late : {false, true}) {
    Work work = BornWork(late);
    LooksUntilBorn(MakeEngine(), work, kNever);
    looks[late] = LooksUntilBorn(MakeEngine(), work, kNever);
  }
  // A replay that went on to the end of its step would look as often for either.
  EXPECT_LT(looks[false], looks[true]);
}

// Ids that ascend are in order already.
TEST_P(Stop, IsAskedForWhileInstancesAreOrdered) {
  constexpr uint64_t kInstances = kSanitized ? 1 << 14 : 1 << 16;
  constexpr int64_t kSort = (kInstances * 16) / sim::WorkMeter::kPiece;  // a comparison is as much
  Work work = SineWork(1, {0, 0, 0}, kInstances, 1);
  int64_t looks = 0;
  work.options.threads = 1;
  work.options.stop = [&] { return ++looks < 0; };
  sim::Observer nobody;
  ASSERT_TRUE(MakeEngine().Execute(work, nobody).ok());
  looks = 0;
  ASSERT_TRUE(MakeEngine().Execute(work, nobody).ok());
  const int64_t ascending = looks;
  for (uint64_t i = 0; i < kInstances; ++i) {
    work.batch.instance_ids[i] = (i * 0x9E3779B1) % kInstances;
  }
  looks = 0;
  ASSERT_TRUE(MakeEngine().Execute(work, nobody).ok());
  EXPECT_GE(looks - ascending, kSort);
  // Weights of gradients are ordered by id, wherever the instances stand.
  looks = 0;
  sim::WorkMeter meter(work.options.stop);
  sim::WeightsOf(work.batch.instance_ids, {}, {}, meter);
  EXPECT_GE(looks, kSort);
}

// Calls without a status: their caller asks whether they were stopped.
TEST_P(Stop, IsAskedForWhereStatesAreCopied) {
  constexpr int64_t kInstances = kSanitized ? 1 << 8 : 1 << 10, kElements = 1 << 12;
  constexpr int64_t kNumbers = kInstances * kElements;
  Work work = SineWork(kElements, {0, 0, 0}, kInstances, 1);
  int64_t looks = 0;
  bool stops = false;
  work.options.threads = 1;
  work.options.stop = [&] { return ++looks > 0 && stops; };
  const auto run = MakeExecutor()->Create(work.batch, work.options);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Start().ok());
  const auto looks_of = [&](const std::function<void()>& call) {
    looks = 0;
    call();
    return looks;
  };
  std::shared_ptr<const void> saved;
  EXPECT_GE(looks_of([&] { saved = (*run)->SaveState(); }), 4 * kNumbers / 8 / kMillion);
  ASSERT_NE(saved, nullptr);
  EXPECT_GE(looks_of([&] { (*run)->RestoreState(saved); }), 4 * kNumbers / 8 / kMillion);
  EXPECT_GE(looks_of([&] { (*run)->State(0); }), sim::kConversionWork * kNumbers / kMillion);
  ASSERT_TRUE((*run)->Forward(0, 1).ok());
  ASSERT_TRUE((*run)->Finish().ok());
  sim::WorkMeter meter;
  ASSERT_TRUE(
      (*run)->StartAdjoint(1.0, sim::WeightsOf(work.batch.instance_ids, {}, {}, meter)).ok());
  ASSERT_TRUE((*run)->Adjoint(0, 1).ok());
  // The gradients of all states are told.
  EXPECT_GE(looks_of([&] { EXPECT_TRUE((*run)->FinishAdjoint().ok()); }), kNumbers / kMillion);
  stops = true;
  EXPECT_EQ((*run)->SaveState(), nullptr);
  EXPECT_EQ(looks_of([&] { (*run)->State(0); }), 1);
}

// What the runs of an executor do.
struct Seen {
  int64_t runs = 0;
  bool has_finished = false;  // the forward pass
  bool copies = false;        // states, now
  bool reverses = false;
  int64_t asked_bytes = 0;  // of steps of the adjoint
  std::vector<std::weak_ptr<const void>> copied;

  bool AllIsGone() const {
    return runs == 0 && std::all_of(copied.begin(), copied.end(),
                                    [](const auto& copy) { return copy.expired(); });
  }
};

class SeenRun : public sim::equality::ForwardingRun {
 public:
  SeenRun(std::unique_ptr<sim::Run> run, Seen& seen) : ForwardingRun(std::move(run)), seen_(seen) {
    ++seen_.runs;
  }
  ~SeenRun() override { --seen_.runs; }
  std::shared_ptr<const void> SaveState() const override {
    seen_.copies = true;
    auto copy = ForwardingRun::SaveState();
    seen_.copies = false;
    seen_.copied.push_back(copy);
    return copy;
  }
  int64_t AdjointBytes(int64_t first, int64_t count) const override {
    ++seen_.asked_bytes;
    return ForwardingRun::AdjointBytes(first, count);
  }
  absl::Status Finish() override {
    absl::Status finished = ForwardingRun::Finish();
    seen_.has_finished = finished.ok();
    return finished;
  }
  absl::Status StartAdjoint(double seed_scale, const sim::InstanceWeights& over) override {
    seen_.reverses = true;
    return ForwardingRun::StartAdjoint(seed_scale, over);
  }

 private:
  Seen& seen_;
};

class SeenExecutor : public sim::Executor {
 public:
  SeenExecutor(std::shared_ptr<sim::Executor> executor, Seen& seen)
      : executor_(std::move(executor)), seen_(seen) {}
  std::string_view name() const override { return executor_->name(); }
  absl::StatusOr<std::unique_ptr<sim::Run>> Create(sim::Batch batch,
                                                   sim::RunOptions options) override {
    auto run = executor_->Create(std::move(batch), std::move(options));
    if (!run.ok()) return run.status();
    return std::make_unique<SeenRun>(*std::move(run), seen_);
  }

 private:
  const std::shared_ptr<sim::Executor> executor_;
  Seen& seen_;
};

// Its reversal copies the states of the end, to run again over the instances that are finite: 2 MiB,
// so whether to stop is asked about in the middle.
Work WorkThatReversesTwice() {
  constexpr int64_t kInstances = 64, kElements = 4096;
  Builder b("weighted");
  const Var x = b.State("x", {kElements});
  const Var w = b.Weights("w", {});
  b.SetNext({x * b.Broadcast(w, {kElements}, {})});
  b.AddObjective("sum", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0]);
  });
  auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  precision::PolicySpec f64;
  f64.preset = "f64";
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(f64), "sum");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), kInstances, 2);
  work.gradient->reduction = sim::InstanceReduction::kFiniteOnly;
  work.options.threads = 1;
  tests::Bind(
      work, InputKind::kState, "x",
      tests::Shared(std::vector<double>(static_cast<size_t>(kElements), 0.25), {kElements}));
  tests::Bind(work, InputKind::kParam, "w", tests::Shared({0.5}, {}));
  return work;
}

// Says why the run ends once it was asked to; OK: it does not know.
class Leaver : public sim::Observer {
 public:
  explicit Leaver(absl::Status reason) : why(std::move(reason)) {}
  absl::Status Continue(WorkPhase) override { return has_left ? why : absl::OkStatus(); }
  const absl::Status why;
  bool has_left = false;
};

// A copy that was left has no state to come back to: the sums of a reversal over it would not be right.
TEST_P(Stop, InTheCopyBeforeAReversalEndsTheRunBeforeItReverses) {
  struct Case {
    bool leaves;
    absl::Status why;
    absl::StatusCode ends;
  };
  const std::vector<Case> cases = {
      {false, absl::OkStatus(), absl::StatusCode::kOk},
      {true, absl::OkStatus(), absl::StatusCode::kCancelled},
      {true, absl::CancelledError("gone"), absl::StatusCode::kCancelled},
      {true, absl::DeadlineExceededError("late"), absl::StatusCode::kDeadlineExceeded}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.leaves ? one.why.ToString() : "stays");
    Seen seen;
    Leaver leaver(one.why);
    Work work = WorkThatReversesTwice();
    int64_t looks = 0;
    work.options.stop = [&] {
      const bool is_there = seen.has_finished && seen.copies;
      looks += is_there ? 1 : 0;
      leaver.has_left = leaver.has_left || (is_there && one.leaves);
      return leaver.has_left;
    };
    const auto result =
        sim::Engine(std::make_shared<SeenExecutor>(MakeExecutor(), seen)).Execute(work, leaver);
    EXPECT_EQ(result.status().code(), one.ends);
    if (!one.why.ok()) {
      EXPECT_EQ(result.status(), one.why);
    }
    EXPECT_EQ(seen.reverses, !one.leaves);
    EXPECT_GE(looks, one.leaves ? 1 : 2);
    EXPECT_GE(seen.copied.size(), 2u);  // of the beginning, and of the end
    EXPECT_TRUE(seen.AllIsGone());
  }
}

TEST_P(Stop, WhileTheStepsOfAReversalAreLookedThroughEndsIt) {
  constexpr int64_t kSteps = 20'000;
  Builder b("long");
  const Var x = b.State("x", {});
  b.SetNext({0.5 * x});
  b.AddObjective("end", nullptr, [](const Vars& states, const Vars&) { return states[0]; });
  auto world = b.Finish();
  ASSERT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, tests::PolicyOf({.preset = "f32"}), "end");
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, kSteps);
  work.options.threads = 1;
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.25}, {}));
  Seen seen;
  Leaver leaver(absl::DeadlineExceededError("late"));
  work.options.stop = [&] {
    leaver.has_left = leaver.has_left || seen.asked_bytes > 0;
    return leaver.has_left;
  };
  const auto result =
      sim::Engine(std::make_shared<SeenExecutor>(MakeExecutor(), seen)).Execute(work, leaver);
  EXPECT_EQ(result.status(), leaver.why);
  EXPECT_GT(seen.asked_bytes, 0);
  EXPECT_LT(seen.asked_bytes, kSteps / 4);
  EXPECT_FALSE(seen.reverses);
}

TEST(ReferenceStop, IsAskedForWhileInstancesAreMade) {
  Work work = SineWork(1, {0, 0, 0}, 1 << 14, 1);
  int64_t looks = 0;
  work.options.stop = [&] { return ++looks > 0; };
  const auto run = sim::MakeReferenceExecutor()->Create(work.batch, work.options);
  EXPECT_EQ(run.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(looks, 1);
}

INSTANTIATE_TEST_SUITE_P(Executors, Stop, ::testing::ValuesIn(Executors()),
                         [](const auto& executor) { return executor.param; });

}  // namespace
}  // namespace simgrad
