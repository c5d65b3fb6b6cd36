// The engine: no bit depends on chunks, checkpoints, budget or the order of the request.
#include "sim/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "precision/aligned_sum.h"
#include "precision/loss_scale.h"
#include "sim/program/builder.h"
#include "sim/program/field_error.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/done.h"
#include "tests/sim/seen_run.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using sim::InputKind;
using sim::Work;
using sim::WorkResult;
using tests::Done;

constexpr int64_t kSteps = 23;
constexpr int64_t kElements = 3;

// Instance `id` of a batch of bouncing balls: what it starts from, and its controls by step.
double Height(uint64_t id, int64_t element) {
  return 0.05 + 0.013 * static_cast<double>(id % 11) + 0.1 * static_cast<double>(element);
}
double Push(uint64_t id, int64_t t) {
  return 0.5 * std::sin(static_cast<double>(id) + 0.3 * static_cast<double>(t));
}

precision::PolicySpec SpecOf(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  return spec;
}

// Balls that hit the floor within the horizon. y and u per instance, u also per step; v, k, h
// shared.
Work Balls(const std::vector<uint64_t>& ids, const precision::PolicySpec& spec,
           const sim::Config& config = {{"clamp", false}}, double k = 1.2) {
  sim::Config full = config;
  full["elements"] = static_cast<double>(kElements);
  const auto world = sim::BuildWorld("bouncing_ball", full);
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = tests::LowerForGradient(*world, tests::PolicyOf(spec), "final_penetration");
  EXPECT_TRUE(program.ok()) << program.status();
  const int64_t n = static_cast<int64_t>(ids.size());
  Work work = tests::WorkOf(*std::move(program), n, kSteps);
  work.batch.instance_ids = ids;
  std::vector<double> y;
  std::vector<double> u;
  for (uint64_t id : ids) {
    for (int64_t e = 0; e < kElements; ++e) y.push_back(Height(id, e));
    for (int64_t t = 0; t < kSteps; ++t) {
      for (int64_t e = 0; e < kElements; ++e) u.push_back(Push(id, t));
    }
  }
  tests::Bind(work, InputKind::kState, "y", {tests::Doubles(y, {n, kElements}), true, false});
  tests::Bind(work, InputKind::kState, "v",
              tests::Shared(std::vector<double>(kElements, -1.0), {kElements}));
  tests::Bind(work, InputKind::kControl, "u",
              {tests::Doubles(u, {n, kSteps, kElements}), true, true});
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({k}, {}));
  return work;
}

const sim::InputGradient& GradientOf(const WorkResult& result, const Work& work, InputKind kind,
                                     const std::string& name) {
  const int32_t input = tests::IndexOf(work.batch.program->program, kind, name);
  for (const sim::InputGradient& gradient : result.gradients) {
    if (gradient.input == input) return gradient;
  }
  ADD_FAILURE() << "no gradient of " << name;
  return result.gradients.at(0);
}

void ExpectSameBits(const WorkResult& a, const WorkResult& b, const std::string& what) {
  EXPECT_EQ(a.final_states, b.final_states) << what;
  EXPECT_EQ(a.values, b.values) << what;
  EXPECT_EQ(a.value, b.value) << what;
  EXPECT_EQ(a.path_signatures, b.path_signatures) << what;
  EXPECT_EQ(a.batch_path_signature, b.batch_path_signature) << what;
  EXPECT_EQ(a.first_event_steps, b.first_event_steps) << what;
  EXPECT_EQ(a.backward, b.backward) << what;
  EXPECT_EQ(a.adjoint_ranges, b.adjoint_ranges) << what;
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_EQ(a.gradients[i].gradient, b.gradients[i].gradient) << what << " gradient " << i;
    EXPECT_EQ(a.gradients[i].connected, b.gradients[i].connected) << what << " gradient " << i;
  }
}

// A gradient made of the nodes of several requests, as the engine makes it of one tree.
std::vector<double> Merged(const std::vector<WorkResult>& shards, const Work& work, InputKind kind,
                           const std::string& name) {
  const precision::RoleSetting& setting = work.batch.program->policy[precision::Role::kGradient];
  std::vector<precision::AlignedNode> nodes;
  size_t width = 0;
  for (const WorkResult& shard : shards) {
    const auto& tree = GradientOf(shard, work, kind, name).tree;
    EXPECT_FALSE(tree.empty());
    for (const precision::AlignedNode& node : tree) width = node.values.size();
    nodes.insert(nodes.end(), tree.begin(), tree.end());
  }
  std::vector<double> sums =
      precision::MergeAlignedNodes(std::move(nodes), width, setting.accumulator);
  const float inverse = precision::InverseLossScale(shards[0].loss_scale);
  for (double& sum : sums) {
    sum = precision::Unscale(setting.format, precision::RoundTo(setting.format, sum), inverse);
  }
  return sums;
}

TEST(Engine, BitsDoNotDependOnChunksCheckpointsOrBudget) {
  for (const std::string preset : {"f32", "f16_safe", "bf16_unsafe"}) {
    tests::JoinedDiagnostics first_seen;
    const auto first = tests::Execute(Balls({0, 1, 5}, SpecOf(preset)), first_seen);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_GT(first_seen.diagnostics.events[0][kSteps - 1].checks, 0u);
    for (int64_t chunk : {0, 1, 5, 23}) {
      for (int64_t interval : {0, 1, 4, 50}) {
        Work work = Balls({0, 1, 5}, SpecOf(preset));
        work.chunk_steps = chunk;
        work.checkpoint_interval = interval;
        tests::JoinedDiagnostics seen;
        const auto result = tests::Execute(work, seen);
        ASSERT_TRUE(result.ok()) << result.status();
        const std::string what =
            preset + " chunk " + std::to_string(chunk) + " interval " + std::to_string(interval);
        ExpectSameBits(*result, *first, what);
        EXPECT_EQ(seen.diagnostics, first_seen.diagnostics) << what;
      }
    }
  }
}

TEST(Engine, SmallerBudgetsRecomputeMoreAndGiveTheSameBitsUntilNothingFits) {
  const WorkResult free = Done(Balls({0, 1}, SpecOf("f32")));
  int64_t most_recomputed = 0;
  bool exhausted = false;
  for (int64_t budget = int64_t{1} << 20; budget > 16; budget /= 2) {
    Work work = Balls({0, 1}, SpecOf("f32"));
    work.memory_budget_bytes = budget;
    work.chunk_steps = 4;
    sim::Observer nobody;
    const auto result = tests::Execute(work, nobody);
    if (!result.ok()) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
      exhausted = true;
      continue;
    }
    EXPECT_FALSE(exhausted) << "a smaller budget was enough: " << budget;
    ExpectSameBits(*result, free, "budget " + std::to_string(budget));
    most_recomputed = std::max(most_recomputed, result->recompute_steps);
  }
  EXPECT_TRUE(exhausted);
  // The records alone are one replay of every step; the tight budgets needed more.
  EXPECT_GT(most_recomputed, 2 * kSteps);
}

#ifdef SIMGRAD_WITH_COMPILED
// A range is no longer than a chunk, and one that does not begin at a checkpoint is run to.
TEST(Engine, CheckpointsThatItChoosesLieNoFurtherApartThanChunksSoEachStepRunsTwice) {
  constexpr int64_t kMany = 200;
  for (const int64_t chunk : {1, 4, 16, 50}) {
    Work work = Balls({0}, SpecOf("f32"));
    work.batch.steps = kMany;
    tests::Bind(work, InputKind::kControl, "u",
                tests::Shared(std::vector<double>(kElements, 0.0), {kElements}));
    work.chunk_steps = chunk;
    EXPECT_EQ(Done(work, sim::MakeCpuExecutor()).recompute_steps, kMany) << chunk;
    work.checkpoint_interval = 2 * chunk;
    EXPECT_GT(Done(work, sim::MakeCpuExecutor()).recompute_steps, kMany) << chunk;
  }
}
#endif

// With a checkpoint at the start alone, each step would run again 2048 / 2 times.
TEST(Engine, AnIntervalOfManyRangesIsReplayedAFewTimesEach) {
  constexpr int64_t kMany = kSanitized ? 512 : 2048;
  constexpr int64_t kReplays = 5;  // 11 checkpoints beside the first: binomial(12 + 5, 5) = 6188
  const auto balls = [&](int64_t interval) {
    Work work = Balls({0}, SpecOf("f32"));
    work.batch.steps = kMany;
    tests::Bind(work, InputKind::kControl, "u",
                tests::Shared(std::vector<double>(kElements, 0.0), {kElements}));
    work.chunk_steps = 1;
    work.checkpoint_interval = interval;
    return work;
  };
  const WorkResult often = Done(balls(1));
  const WorkResult once = Done(balls(kMany));
  ExpectSameBits(once, often, "interval");
  EXPECT_EQ(often.recompute_steps, kMany);
  EXPECT_LE(once.recompute_steps, (1 + kReplays) * kMany);
}

TEST(Engine, AnInstanceHasTheSameBitsAloneAndInAnyBatchInAnyOrder) {
  const std::vector<uint64_t> ids = {7, 0, 1u << 20, 3, 2};
  const WorkResult batch = Done(Balls(ids, SpecOf("f16_safe")));
  std::vector<uint64_t> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  const WorkResult reordered = Done(Balls(sorted, SpecOf("f16_safe")));
  EXPECT_EQ(reordered.batch_path_signature, batch.batch_path_signature);
  EXPECT_EQ(reordered.value, batch.value);
  const Work shape = Balls(ids, SpecOf("f16_safe"));
  const auto& k = GradientOf(batch, shape, InputKind::kParam, "k").gradient;
  EXPECT_EQ(GradientOf(reordered, shape, InputKind::kParam, "k").gradient, k);
  for (size_t row = 0; row < ids.size(); ++row) {
    const WorkResult alone = Done(Balls({ids[row]}, SpecOf("f16_safe")));
    EXPECT_EQ(alone.values[0], batch.values[row]);
    EXPECT_EQ(alone.path_signatures[0], batch.path_signatures[row]);
    const auto& u = GradientOf(batch, shape, InputKind::kControl, "u").gradient;
    const auto& own = GradientOf(alone, shape, InputKind::kControl, "u").gradient;
    for (int64_t i = 0; i < own.count(); ++i) {
      EXPECT_EQ(own.Get(i), u.Get(static_cast<int64_t>(row) * own.count() + i));
    }
  }
}

// So soft a floor that penetration is left at the end.
const sim::Config kSoft = {{"clamp", false}};
constexpr double kSmallK = 0.01;

TEST(Engine, NodesOfShardsMergeToTheGradientOfOneRequest) {
  for (const std::string preset : {"f64", "f32", "bf16_safe", "f16_safe"}) {
    Work whole = Balls({4, 9, 1, 12, 6, 300}, SpecOf(preset), kSoft, kSmallK);
    whole.weights = {0.5, -1.25, 3.0, 0.1, 1.0, 0.7};
    const WorkResult once = Done(whole);
    EXPECT_TRUE(GradientOf(once, whole, InputKind::kParam, "k").tree.empty());
    std::vector<WorkResult> shards;
    for (const auto& [ids, weights] :
         std::vector<std::pair<std::vector<uint64_t>, std::vector<double>>>{
             {{9, 12, 300}, {-1.25, 0.1, 0.7}}, {{4, 1, 6}, {0.5, 3.0, 1.0}}}) {
      Work shard = Balls(ids, SpecOf(preset), kSoft, kSmallK);
      shard.weights = weights;
      shard.gradient->return_tree = true;
      shards.push_back(Done(std::move(shard)));
    }
    for (const auto& [kind, name] :
         {std::pair{InputKind::kParam, "k"}, {InputKind::kParam, "h"}, {InputKind::kState, "v"}}) {
      const sim::Tensor& want = GradientOf(once, whole, kind, name).gradient;
      const std::vector<double> merged = Merged(shards, whole, kind, name);
      ASSERT_EQ(static_cast<int64_t>(merged.size()), want.count()) << name;
      for (int64_t i = 0; i < want.count(); ++i) {
        EXPECT_EQ(merged[static_cast<size_t>(i)], want.Get(i)) << preset << " " << name << " " << i;
      }
      if (kind == InputKind::kParam) {
        EXPECT_NE(merged.back(), 0.0) << preset << " " << name;
      }
    }
  }
}

TEST(Engine, SharedGradientsAreTheAlignedTreeOfWeightedSingleOnes) {
  const std::vector<uint64_t> ids = {4, 9, 1, 12, 6};
  const std::vector<double> weights = {0.5, -1.25, 3.0, 0.1, 1.0};
  Work work = Balls(ids, SpecOf("f32"), kSoft, kSmallK);
  work.weights = weights;
  const WorkResult batch = Done(work);
  std::vector<std::pair<uint64_t, std::pair<double, double>>> parts;
  for (size_t row = 0; row < ids.size(); ++row) {
    const WorkResult alone = Done(Balls({ids[row]}, SpecOf("f32"), kSoft, kSmallK));
    const double g = GradientOf(alone, work, InputKind::kParam, "h").gradient.Get(0);
    const auto weighted = [&](double x) {
      return precision::Mul(precision::Format::kF32, weights[row], x);
    };
    parts.push_back({ids[row], {weighted(g), weighted(alone.values[0])}});
  }
  std::sort(parts.begin(), parts.end());
  precision::AlignedSum sum(2, precision::Format::kF32);
  for (const auto& [id, part] : parts) sum.Add(id, std::vector<double>{part.first, part.second});
  const std::vector<double> sums = sum.Take();
  EXPECT_NE(sums[0], 0.0);
  EXPECT_NE(sums[1], 0.0);
  EXPECT_EQ(GradientOf(batch, work, InputKind::kParam, "h").gradient.Get(0), sums[0]);
  EXPECT_EQ(batch.value, sums[1]);
}

TEST(Engine, ARolloutWeighsItsValuesAsAGradientDoes) {
  std::vector<uint64_t> ids(32);
  std::iota(ids.begin(), ids.end(), uint64_t{1});
  Work gradient = Balls(ids, SpecOf("f32"), {{"clamp", false}}, 0.01);  // so small that balls sink
  for (uint64_t id : ids) gradient.weights.push_back(static_cast<double>(id));
  Work rollout = gradient;
  rollout.gradient.reset();
  const double value = Done(gradient).value;
  EXPECT_EQ(Done(rollout).value, value);
  rollout.weights.clear();
  EXPECT_NE(Done(rollout).value, value);
}

TEST(Engine, FiniteOnlyLeavesOutAndCountsWhatIsNotFinite) {
  const std::vector<uint64_t> ids = {0, 1, 2};
  const auto spoiled = [&](sim::InstanceReduction reduction) {
    Work work = Balls(ids, SpecOf("f32"));
    work.gradient->reduction = reduction;
    const int32_t y = tests::IndexOf(work.batch.program->program, InputKind::kState, "y");
    work.batch.inputs[static_cast<size_t>(y)].tensor.Set(1 * kElements, std::nan(""));
    return work;
  };
  const Work work = spoiled(sim::InstanceReduction::kFiniteOnly);
  const WorkResult finite = Done(work);
  EXPECT_EQ(finite.left_out, 1);
  EXPECT_FALSE(finite.skipped);
  EXPECT_EQ(finite.health[1].phase, sim::Phase::kInput);
  const WorkResult others = Done(Balls({0, 2}, SpecOf("f32")));
  const auto& k = GradientOf(finite, work, InputKind::kParam, "k");
  EXPECT_EQ(k.gradient, GradientOf(others, work, InputKind::kParam, "k").gradient);
  EXPECT_EQ(finite.value, others.value);
  const WorkResult all = Done(spoiled(sim::InstanceReduction::kAll));
  EXPECT_EQ(all.left_out, 0);
  EXPECT_TRUE(std::isnan(all.value));
}

TEST(Engine, StepsOfTheReversalAreToldWhereTheyAreAskedFor) {
  Work work = Balls({0, 1, 2}, SpecOf("f16_unsafe"));
  const WorkResult told = Done(work);
  const std::shared_ptr<sim::Executor> cpu = sim::MakeCpuExecutor();
  const auto bytes = sim::EstimateBytes(work, *cpu);
  work.gradient->tell_steps = false;
  const WorkResult untold = Done(work);
  EXPECT_TRUE(untold.backward.empty());
  uint64_t nonfinite = 0;
  for (const sim::BackwardStep& step : told.backward) nonfinite += step.nonfinite;
  EXPECT_EQ(told.nonfinite_cotangents, nonfinite);
  EXPECT_EQ(untold.nonfinite_cotangents, nonfinite);
  for (size_t i = 0; i < told.gradients.size(); ++i) {
    EXPECT_EQ(told.gradients[i].gradient, untold.gradients[i].gradient);
  }
  EXPECT_EQ(*bytes - *sim::EstimateBytes(work, *cpu),
            work.batch.steps * static_cast<int64_t>(sizeof(sim::BackwardStep)));
}

TEST(Engine, SkipsWhereTheLossScaleOverflowsTheGradient) {
  precision::PolicySpec spec = SpecOf("f32");
  spec.loss_scale = 0x1p127;
  Work work = Balls({0}, spec, {{"contact", std::string("penalty")}}, 0.0);
  // A penetration of 10^3: the cotangent 2^127 / 3 * p leaves f32.
  const int32_t y = tests::IndexOf(work.batch.program->program, InputKind::kState, "y");
  for (int64_t e = 0; e < kElements; ++e) {
    work.batch.inputs[static_cast<size_t>(y)].tensor.Set(e, -1000.0);
  }
  const WorkResult result = Done(work);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.loss_scale, 0x1p127);
  EXPECT_EQ(result.health[0].phase, sim::Phase::kAdjoint);
  ASSERT_EQ(result.certificates.size(), 1u);
  EXPECT_EQ(result.certificates[0].phase, sim::Phase::kAdjoint);
}

TEST(Engine, LossScaleOfAPowerOfTwoLeavesF32GradientsAlone) {
  precision::PolicySpec scaled = SpecOf("f32");
  scaled.loss_scale = 1024;
  const WorkResult with = Done(Balls({0, 1}, scaled));
  const WorkResult without = Done(Balls({0, 1}, SpecOf("f32")));
  for (size_t i = 0; i < with.gradients.size(); ++i) {
    EXPECT_EQ(with.gradients[i].gradient, without.gradients[i].gradient);
  }
}

TEST(Engine, NamesTheEventThatGatedADisconnectedInput) {
  Work work = Balls({0}, SpecOf("f64"), {{"contact", std::string("penalty")}}, 100.0);
  const int32_t y = tests::IndexOf(work.batch.program->program, InputKind::kState, "y");
  for (int64_t e = 0; e < kElements; ++e) {
    work.batch.inputs[static_cast<size_t>(y)].tensor.Set(e, 1e3);  // never touches the floor
  }
  const WorkResult result = Done(work);
  const auto& damping = GradientOf(result, work, InputKind::kParam, "damping");
  EXPECT_EQ(damping.connected, 0);
  EXPECT_EQ(damping.gated_by, "contact");
}

// One ball with the given world, start and horizon; every step the same numbers as the reference.
std::string GateOfParam(const std::string& param, const sim::Config& config, double y, double v,
                        int64_t steps) {
  auto program = tests::LowerForGradient(*sim::BuildWorld("bouncing_ball", config),
                                         tests::PolicyOf(SpecOf("f64")), "final_height");
  Work work = tests::WorkOf(*std::move(program), 1, steps);
  tests::Bind(work, InputKind::kState, "y", tests::Shared({y}, {1}));
  tests::Bind(work, InputKind::kState, "v", tests::Shared({v}, {1}));
  tests::Bind(work, InputKind::kParam, "k", tests::Shared({1.0}, {}));
  const WorkResult result = Done(work);
  const auto& gradient = GradientOf(result, work, InputKind::kParam, param);
  EXPECT_EQ(gradient.connected, 0) << param;
  return gradient.gated_by;
}

TEST(Engine, TheGateOfADisconnectedInputIsOneThatTheRunMet) {
  const sim::Config toi = {{"contact", std::string("toi")}};
  // Never in contact: `rest`, which chooses between two outcomes of a contact, is never asked.
  EXPECT_EQ(GateOfParam("restitution", toi, 5.0, 0.0, 5), "contact");
  // On the floor from the start, and pressed into it: always in contact, always at rest.
  EXPECT_EQ(GateOfParam("restitution", toi, 0.0, 0.0, 5), "rest");
  EXPECT_EQ(GateOfParam("alpha", toi, 5.0, 0.0, 5), "");  // no site: toi does not use it
  const sim::Config clamped = {{"contact", std::string("projection")}, {"clamp", true}};
  EXPECT_EQ(GateOfParam("k", clamped, 5.0, 0.0, 5), "projection");  // no iteration
  EXPECT_EQ(GateOfParam("restitution", clamped, 5.0, 0.0, 5), "contact");
  // It iterates, and the relu after the loop ends what k did: a kink, no site.
  EXPECT_EQ(GateOfParam("k", clamped, 0.005, -1.0, 3), "");
}

// Says no at a given call.
class Stopper : public sim::Observer {
 public:
  Stopper(sim::WorkPhase phase, int calls) : phase_(phase), calls_(calls) {}
  absl::Status Continue(sim::WorkPhase phase) override {
    if (phase == phase_ && --calls_ == 0) return absl::CancelledError("enough");
    return absl::OkStatus();
  }
  void OnForward(const sim::ForwardChunk&) override { ++forward; }
  void OnAdjoint(int64_t, const sim::AdjointChunk&) override { ++adjoint; }
  int forward = 0;
  int adjoint = 0;

 private:
  sim::WorkPhase phase_;
  int calls_;
};

TEST(Engine, EndsBetweenChunksWithTheStatusOfItsObserver) {
  Work work = Balls({0}, SpecOf("f32"));
  work.chunk_steps = 5;
  work.checkpoint_interval = 5;
  Stopper forward(sim::WorkPhase::kForward, 3);
  EXPECT_EQ(tests::Execute(work, forward).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(forward.forward, 2);
  Stopper adjoint(sim::WorkPhase::kAdjoint, 3);  // it asks once before the adjoint begins
  EXPECT_EQ(tests::Execute(work, adjoint).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(adjoint.forward, 5);
  EXPECT_EQ(adjoint.adjoint, 1);
}

// One step of 10^6 sines and, for the gradient, as many in reverse.
Work LongStep() {
  sim::Builder b("sines");
  const sim::Var x = b.State("x", {});
  b.SetNext(b.For(kSanitized ? 10'000 : 100'000, {x}, [&](sim::Var, const sim::Vars& carried) {
    sim::Var y = carried[0];
    for (int i = 0; i < 10; ++i) y = b.Apply(sim::OpCode::kSin, {y});
    return sim::Vars{y};
  }));
  b.AddObjective("end", nullptr,
                 [](const sim::Vars& states, const sim::Vars&) { return states[0]; });
  auto program = tests::LowerForGradient(*b.Finish(), tests::PolicyOf(SpecOf("f32")), "end");
  EXPECT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOf(*std::move(program), 1, 1);
  tests::Bind(work, InputKind::kState, "x", tests::Shared({0.5}, {}));
  return work;
}

TEST(Engine, AStepThatTakesLongEndsInItsMiddleForTheReasonOfTheObserver) {
  // Says stop from the n-th question on; the reason is asked for once the run has ended.
  struct Late : sim::Observer {
    absl::Status Continue(sim::WorkPhase) override {
      return stopped ? absl::DeadlineExceededError("late") : absl::OkStatus();
    }
    bool stopped = false;
  };
  const std::shared_ptr<sim::Executor> executors[] = {sim::MakeReferenceExecutor(),
                                                      sim::MakeCpuExecutor()};
  for (const auto& executor : executors) {
    const sim::Engine engine(executor);
    sim::Observer first;
    ASSERT_TRUE(engine.Execute(LongStep(), first).ok());  // those who wait for a compile ask too
    int questions = 0;
    Work whole = LongStep();
    whole.options.stop = [&questions] { return ++questions < 0; };
    sim::Observer patient;
    ASSERT_TRUE(engine.Execute(std::move(whole), patient).ok());
    ASSERT_GT(questions, 8) << executor->name();
    const int all = questions;
    for (int last : kSanitized ? std::vector{2, all}
                               : std::vector{1, 2, all}) {  // forward; forward; in reverse
      Late late;
      questions = 0;
      Work work = LongStep();
      work.options.stop = [&] { return late.stopped = ++questions >= last; };
      const auto result = engine.Execute(std::move(work), late);
      EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << executor->name();
      EXPECT_EQ(questions, last);
    }
  }
}

TEST(Engine, RefusesACostThatReadsTheLastStepOfARunWithoutSteps) {
  Work work = Balls({0}, SpecOf("f32"));  // final_penetration
  work.batch.steps = 0;
  for (sim::Binding& binding : work.batch.inputs) binding.per_step = false;
  tests::Bind(work, InputKind::kControl, "u", {});
  sim::Observer observer;
  const absl::Status refused = tests::Execute(std::move(work), observer).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sim::FieldOf(refused), "steps");
}

TEST(Engine, AnswersForNoInstances) {
  const WorkResult none = Done(Balls({}, SpecOf("f32")));
  EXPECT_EQ(none.value, 0.0);
  EXPECT_EQ(none.final_states[0].count(), 0);
  EXPECT_EQ(none.batch_path_signature, 0u);
}

TEST(Engine, RefusesABatchThatDoesNotFitItsProgram) {
  const auto status = [](Work work) {
    sim::Observer nobody;
    return tests::Execute(std::move(work), nobody).status();
  };
  Work twins = Balls({3, 4}, SpecOf("f32"));
  twins.batch.instance_ids[1] = 3;
  EXPECT_EQ(status(twins).code(), absl::StatusCode::kInvalidArgument);
  Work unsent = Balls({3}, SpecOf("f32"));
  tests::Bind(unsent, InputKind::kParam, "k", {});
  EXPECT_NE(status(unsent).message().find("param.k"), std::string::npos);
  Work weights = Balls({3}, SpecOf("f32"));
  weights.weights = {1, 2};
  EXPECT_EQ(status(weights).code(), absl::StatusCode::kInvalidArgument);
}

TEST(EstimateBytes, BoundsTheMemoryOfTheAdjointByItsBudget) {
  Work work = Balls({0, 1}, SpecOf("f32"));
  const int64_t free = sim::EstimateBytes(work);
  work.memory_budget_bytes = 1 << 10;
  const int64_t bounded = sim::EstimateBytes(work);
  work.gradient.reset();
  const int64_t forward = sim::EstimateBytes(work);
  EXPECT_GT(free, bounded);
  EXPECT_LE(bounded - forward, (1 << 10) + 3 * 8 * 2 * (kSteps * kElements + 3 * kElements + 16));
  EXPECT_GT(forward, 0);
}

}  // namespace
}  // namespace simgrad
