// Gradients of params declared weights: sums over the instances of blocks of 256 ids, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "precision/aligned_sum.h"
#include "precision/arithmetic.h"
#include "precision/loss_scale.h"
#include "sim/engine.h"
#include "sim/program/builder.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/done.h"
#include "tests/sim/work_maker.h"

namespace simgrad {
namespace {

using precision::Format;
using sim::Builder;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Work;
using sim::WorkResult;
using tests::Done;

constexpr int64_t kWidth = 3;
constexpr int64_t kSteps = 11;

// x' = x / 2 + w * x + b, element by element; w and b are weights, or controls, which have a gradient
// for each instance and step. `everywhere`: weights are read at the beginning and at the end, too.
enum class As { kWeights, kParams, kControls };
sim::Program World(As as, bool everywhere = false) {
  Builder b("affine");
  const auto declare = [&](const std::string& name, sim::Shape shape) {
    if (as == As::kWeights) return b.Weights(name, std::move(shape));
    if (as == As::kParams) return b.Param(name, std::move(shape));
    return b.Control(name, std::move(shape));
  };
  const Var x = b.State("x", {kWidth});
  const Var w = declare("w", {kWidth});
  const Var c = declare("b", {});
  if (everywhere) b.SetInitial([&] { return sim::Vars{b.Apply(OpCode::kMul, {x, w})}; });
  const Var half = b.Apply(OpCode::kMul, {x, b.Literal(0.5)});
  const Var wx = b.Apply(OpCode::kMul, {w, x});
  const Var sum = b.Apply(OpCode::kAdd, {half, wx});
  b.SetNext({b.Apply(OpCode::kAdd, {sum, c})});
  b.AddObjective("end", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    Var cost = b.Apply(OpCode::kMul, {states[0], states[0]});
    if (everywhere) cost = b.Apply(OpCode::kMul, {cost, w});
    return b.Reduce(OpCode::kSum, cost);
  });
  auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

double Start(uint64_t id, int64_t e) {
  return std::sin(0.37 * static_cast<double>(id % 1009) + 1.3 * static_cast<double>(e));
}

precision::PolicySpec SpecOf(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  spec.loss_scale = preset == "f16_safe" ? 16 : preset == "f32" ? 1024 : 1;
  return spec;
}

Work WorkFor(As as, const std::vector<uint64_t>& ids, const std::string& preset,
             bool everywhere = false) {
  auto program =
      tests::LowerForGradient(World(as, everywhere), tests::PolicyOf(SpecOf(preset)), "end");
  EXPECT_TRUE(program.ok()) << program.status();
  const int64_t n = static_cast<int64_t>(ids.size());
  Work work = tests::WorkOf(*std::move(program), n, kSteps);
  work.batch.instance_ids = ids;
  std::vector<double> x;
  for (uint64_t id : ids) {
    for (int64_t e = 0; e < kWidth; ++e) x.push_back(Start(id, e));
  }
  tests::Bind(work, InputKind::kState, "x", {tests::Doubles(x, {n, kWidth}), true, false});
  const std::vector<double> w = {0.3, -0.7, 0.55};
  const std::vector<double> b = {0.125};
  if (as != As::kControls) {
    tests::Bind(work, InputKind::kParam, "w", tests::Shared(w, {kWidth}));
    tests::Bind(work, InputKind::kParam, "b", tests::Shared(b, {}));
    return work;
  }
  const auto repeated = [&](const std::vector<double>& numbers, sim::Shape shape) {
    std::vector<double> all;
    for (int64_t k = 0; k < n * kSteps; ++k) all.insert(all.end(), numbers.begin(), numbers.end());
    sim::Shape full = {n, kSteps};
    full.insert(full.end(), shape.begin(), shape.end());
    return sim::Binding{tests::Doubles(all, full), true, true};
  };
  tests::Bind(work, InputKind::kControl, "w", repeated(w, {kWidth}));
  tests::Bind(work, InputKind::kControl, "b", repeated(b, {}));
  return work;
}

const sim::InputGradient& Of(const WorkResult& result, const Work& work, const std::string& name) {
  for (const sim::InputGradient& gradient : result.gradients) {
    const auto& input = work.batch.program->program.inputs[static_cast<size_t>(gradient.input)];
    if (input.name == name) return gradient;
  }
  ADD_FAILURE() << "no gradient of " << name;
  return result.gradients.at(0);
}

std::vector<double> NumbersOf(const sim::Tensor& tensor) {
  std::vector<double> numbers;
  for (int64_t k = 0; k < tensor.count(); ++k) numbers.push_back(tensor.Get(k));
  return numbers;
}

// Ids of many kinds: adjoining, from the middle of a block on, far apart, in no order.
std::vector<std::vector<uint64_t>> IdLists() {
  std::vector<std::vector<uint64_t>> lists(5);
  for (uint64_t id = 0; id < 600; ++id) lists[0].push_back(id);
  for (uint64_t id = 250; id < 523; ++id) lists[1].push_back(id);
  for (uint64_t id = 0; id < 90; ++id) lists[2].push_back((id * 7919) % 1021);
  for (uint64_t id = 0; id < 70; ++id) lists[3].push_back(~uint64_t{0} - id * 37);
  lists[4] = {77};
  return lists;
}

std::vector<double> WeightsFor(const std::vector<uint64_t>& ids, bool ones) {
  std::vector<double> weights;
  for (uint64_t id : ids) {
    weights.push_back(ones ? 1.0 : 0.1 * static_cast<double>(id % 23) - 0.7);
  }
  return weights;
}

// The definition (docs/numerics.md section 6), from the gradients of controls: [instance][step][n],
// each times its weight and rounded.
std::vector<double> Defined(const std::vector<uint64_t>& ids, const std::vector<double>& leaves,
                            size_t n, const precision::RoleSetting& setting) {
  std::map<uint64_t, std::map<uint64_t, size_t>> blocks;
  for (size_t row = 0; row < ids.size(); ++row) blocks[ids[row] >> 8][ids[row]] = row;
  precision::AlignedSum over_blocks(n, setting.accumulator);
  for (const auto& [block, rows] : blocks) {
    std::vector<double> total(n, 0.0);
    for (size_t t = kSteps; t-- > 0;) {
      precision::AlignedSum sum(n, setting.accumulator);
      for (const auto& [id, row] : rows) {
        sum.Add(id, std::span(leaves).subspan((row * kSteps + t) * n, n));
      }
      const std::vector<double> step = sum.Take();
      for (size_t k = 0; k < n; ++k) {
        const double rounded = precision::RoundTo(setting.format, step[k]);
        total[k] = precision::Add(setting.format, total[k], rounded);
      }
    }
    over_blocks.Add(block, total);
  }
  std::vector<double> sums = over_blocks.Take();
  for (double& x : sums) x = precision::RoundTo(setting.format, x);
  return sums;
}

class WeightsTest : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<sim::Executor> executor() const {
    return GetParam() ? sim::MakeCpuExecutor() : sim::MakeReferenceExecutor();
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, WeightsTest, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "cpu" : "reference"; });

TEST_P(WeightsTest, AreSumsOfStepsInBlocksOfIds) {
  std::vector<std::string> presets = {"bf16_unsafe", "f64", "f32", "bf16_safe", "f16_safe"};
  if (kSanitized) presets.resize(1);
  for (const std::string& preset : presets) {
    for (const std::vector<uint64_t>& ids : IdLists()) {
      for (bool ones : kSanitized ? std::vector{false} : std::vector{true, false}) {
        SCOPED_TRACE(preset + " " + std::to_string(ids.size()) + (ones ? " ones" : ""));
        Work work = WorkFor(As::kWeights, ids, preset);
        Work controls = WorkFor(As::kControls, ids, preset);
        work.weights = controls.weights = WeightsFor(ids, ones);
        const WorkResult actual = Done(work, executor());
        const WorkResult single = Done(controls, executor());
        const auto& setting = work.batch.program->policy[precision::Role::kGradient];
        for (const std::string name : {"w", "b"}) {
          const size_t n = name == "w" ? kWidth : 1;
          const auto& gradient = Of(actual, work, name);
          const auto leaves = NumbersOf(Of(single, controls, name).gradient);
          EXPECT_EQ(NumbersOf(gradient.gradient), Defined(ids, leaves, n, setting)) << name;
          EXPECT_EQ(gradient.connected, static_cast<int64_t>(ids.size()));
          const auto& want = Of(single, controls, name).magnitudes;
          EXPECT_EQ(gradient.magnitudes.zero, want.zero) << name;
          EXPECT_EQ(gradient.magnitudes.smallest, want.smallest) << name;
          EXPECT_EQ(gradient.magnitudes.largest, want.largest) << name;
        }
      }
    }
  }
}

TEST_P(WeightsTest, AreThoseOfParamsButForRounding) {
  std::vector<uint64_t> ids = IdLists()[1];
  Work work = WorkFor(As::kWeights, ids, "f64", true);
  Work params = WorkFor(As::kParams, ids, "f64", true);
  work.weights = params.weights = WeightsFor(ids, false);
  const WorkResult actual = Done(work, executor());
  const WorkResult expected = Done(params, executor());
  EXPECT_EQ(actual.value, expected.value);
  for (const std::string name : {"w", "b"}) {
    const auto a = NumbersOf(Of(actual, work, name).gradient);
    const auto b = NumbersOf(Of(expected, params, name).gradient);
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) {
      EXPECT_NE(a[k], 0.0);
      EXPECT_NEAR(a[k], b[k], 1e-12 * std::abs(b[k])) << name << " " << k;
    }
  }
}

TEST_P(WeightsTest, AreTheSameForEveryOrderIntervalChunkAndNumberOfThreads) {
  const std::vector<uint64_t> ids = IdLists()[0];
  const Work work = WorkFor(As::kWeights, ids, "f32", true);
  const WorkResult once = Done(work, executor());
  std::vector<uint64_t> mixed = ids;
  for (size_t k = 0; k < mixed.size(); ++k) std::swap(mixed[k], mixed[(k * 173) % mixed.size()]);
  std::vector<Work> others(4, work);
  others[0] = WorkFor(As::kWeights, mixed, "f32", true);
  others[1].checkpoint_interval = 2;
  others[2].chunk_steps = 1;
  others[3].options.threads = 3;
  for (size_t k = 0; k < others.size(); ++k) {
    const WorkResult other = Done(others[k], executor());
    for (const std::string name : {"w", "b"}) {
      EXPECT_EQ(Of(other, work, name).gradient, Of(once, work, name).gradient) << k << " " << name;
    }
  }
}

TEST_P(WeightsTest, HaveNodesThatMergeWhereShardsAreCutBetweenBlocks) {
  const std::vector<uint64_t> ids = IdLists()[0];
  const Work work = WorkFor(As::kWeights, ids, "f32");
  const WorkResult once = Done(work, executor());
  std::map<std::string, std::vector<precision::AlignedNode>> nodes;
  for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 512}, {512, 600}}) {
    const auto from = ids.begin();
    Work shard = WorkFor(As::kWeights, {from + first, from + last}, "f32");
    shard.gradient->return_tree = true;
    const WorkResult result = Done(shard, executor());
    for (const std::string name : {"w", "b"}) {
      for (const auto& node : Of(result, shard, name).tree) {
        EXPECT_GE(node.block.level, 8);
        nodes[name].push_back(node);
      }
    }
  }
  const auto& setting = work.batch.program->policy[precision::Role::kGradient];
  for (const std::string name : {"w", "b"}) {
    const size_t n = name == "w" ? kWidth : 1;
    std::vector<double> merged = precision::MergeAlignedNodes(nodes[name], n, setting.accumulator);
    const auto& policy = work.batch.program->policy;
    const float inverse = precision::InverseLossScale(policy.loss_scale);
    for (double& x : merged) {
      x = precision::Unscale(setting.format, precision::RoundTo(setting.format, x), inverse);
    }
    EXPECT_EQ(merged, NumbersOf(Of(once, work, name).gradient)) << name;
  }
}

// The forward pass of instance 5 is finite and its cotangents overflow; that of 9 is not finite.
TEST_P(WeightsTest, LeaveOutWhatIsNotFiniteThoughOnlyTheReversalTells) {
  std::vector<uint64_t> ids(40);
  for (size_t k = 0; k < ids.size(); ++k) ids[k] = 240 + k;
  std::vector<uint64_t> finite;
  for (uint64_t id : ids) {
    if (id != 245 && id != 249) finite.push_back(id);
  }
  const auto spoiled = [&](sim::InstanceReduction reduction) {
    Work work = WorkFor(As::kWeights, ids, "f32");
    work.gradient->reduction = reduction;
    work.weights = WeightsFor(ids, false);
    auto& x = work.batch.inputs[0].tensor;
    x.Set(9 * kWidth, std::numeric_limits<double>::infinity());
    // The square of what it becomes is finite; that times the loss scale is not.
    for (int64_t e = 0; e < kWidth; ++e) x.Set(5 * kWidth + e, 1.2e18);
    return work;
  };
  const WorkResult all = Done(spoiled(sim::InstanceReduction::kAll), executor());
  EXPECT_TRUE(all.skipped);
  const Work work = spoiled(sim::InstanceReduction::kFiniteOnly);
  const WorkResult result = Done(work, executor());
  EXPECT_EQ(result.left_out, 2);
  EXPECT_EQ(result.health[5].phase, sim::Phase::kAdjoint);
  EXPECT_EQ(result.health[9].phase, sim::Phase::kInput);
  EXPECT_EQ(result.overflowed, 1);  // a smaller scale may keep it
  EXPECT_TRUE(result.skipped);
  Work others = WorkFor(As::kWeights, finite, "f32");
  others.weights = WeightsFor(finite, false);
  const WorkResult expected = Done(others, executor());
  EXPECT_EQ(result.value, expected.value);
  for (const std::string name : {"w", "b"}) {
    EXPECT_EQ(Of(result, work, name).gradient, Of(expected, others, name).gradient) << name;
    EXPECT_EQ(Of(result, work, name).magnitudes.largest,
              Of(expected, others, name).magnitudes.largest);
  }
}

// Without a need of the executor's own, as for programs that are too large to compile.
TEST(Weights, NeedNoMemoryPerInstance) {
  std::vector<uint64_t> ids(4096);
  for (size_t k = 0; k < ids.size(); ++k) ids[k] = k;
  Work weights = WorkFor(As::kWeights, ids, "f32");
  Work params = WorkFor(As::kParams, ids, "f32");
  const int64_t of_params = sim::EstimateBytes(params);
  // Three copies of four numbers for each instance; what is left are sixteen blocks.
  EXPECT_LE(sim::EstimateBytes(weights), of_params - 3 * 8 * 4 * (4096 - 17));
}

// A list of many groups ends where it is asked to.
TEST(Weights, AreStoppedWhileBlocksAreMade) {
  std::vector<uint64_t> ids(1 << 16);
  for (size_t k = 0; k < ids.size(); ++k) ids[k] = (k * 40503) % ids.size();
  const Work work = WorkFor(As::kWeights, ids, "f32");
  sim::WorkMeter meter([] { return true; });
  sim::WorkMeter endless;
  const auto all = sim::WeightsOf(ids, {}, {}, endless);
  EXPECT_THROW(sim::BlockSums(*work.batch.program, all, 16, 1.0, meter), sim::StopRequested);
}

TEST(Weights, AreSharedByAllInstances) {
  Work work = WorkFor(As::kWeights, {0, 1}, "f32");
  tests::Bind(work, InputKind::kParam, "b", {tests::Doubles({1.0, 2.0}, {2}), true, false});
  sim::Observer nobody;
  const auto result = tests::Execute(std::move(work), nobody);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().message(),
            "param.b is declared weights, which all instances share; send it without instances");
}

}  // namespace
}  // namespace simgrad
