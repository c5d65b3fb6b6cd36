// Gradients of params declared `weights`, summed on the device, have the bits of the reference: sums,
// trees and magnitudes, for every order of ids, every cut into launches, and both mappings.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "sim/backend/reference/reference_executor.h"
#include "sim/program/builder.h"
#include "tests/sim/backend/cuda/host_shim/compiled_text.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/weights_of_layers.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {
namespace {

using precision::Format;
using sim::Builder;
using sim::InputKind;
using sim::OpCode;
using sim::Var;
using sim::Vars;
using sim::cuda::Mapping;

constexpr int64_t kSteps = 5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A layer with weights `w`, `c`, `v`; a loop whose trips depend on the state, with weights `k` in it;
// `s` in `initial` and in the terminal cost alone, one of its numbers without use; `g`, which the
// state y of some instances shuts off. The root of y has no finite derivative at 0. `p` is no weights.
sim::Program Trained() {
  Builder b("trained");
  const Var x = b.State("x", {1, 4});
  const Var y = b.State("y", {});
  const Var w = b.Weights("w", {4, 5});
  const Var c = b.Weights("c", {1, 5});
  const Var v = b.Weights("v", {5, 4});
  const Var k = b.Weights("k", {});
  const Var s = b.Weights("s", {3});
  const Var g = b.Weights("g", {});
  const Var p = b.Param("p", {});
  const Var u = b.Control("u", {}, 0.0);
  const auto part = [&](int64_t e) { return b.Reshape(b.Slice(s, {e}, {1}), {}); };
  b.SetInitial([&] { return Vars{part(0) * x, y}; });
  const Var hidden = b.Apply(OpCode::kTanh, {b.Do(OpCode::kMatmul, {x, w}) + c});
  const sim::LoopResult loop = b.While(
      {.site = "shrink", .max_iter = 6}, {x}, {},
      [&](const Vars& in, const Vars&) {
        return sim::LoopTest{
            b.Reduce(OpCode::kSum, in[0] * in[0]), b.Literal(0.3), std::nullopt, {}};
      },
      [&](const Vars& in, const Vars&, const Vars&) { return Vars{k * in[0]}; });
  const Var gate = g * sim::Relu(y - b.Literal(0.5));
  b.SetNext({loop.carried[0] + 0.3 * b.Do(OpCode::kMatmul, {hidden, v}) +
                 0.01 * (p * sim::Sqrt(y) + gate + u),
             y});
  b.AddObjective("end", nullptr, [&](const Vars& states, const Vars&) {
    return b.Reduce(OpCode::kSum, states[0] * states[0]) * part(1);
  });
  return *b.Finish();
}

enum class Bad { kNone, kForward, kAdjoint };

sim::Work WorkOver(const std::vector<uint64_t>& ids, const precision::PolicySpec& spec,
                   Bad bad = Bad::kNone) {
  auto lowered = LowerForGradient(Trained(), PolicyOf(spec), "end");
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  const int64_t n = static_cast<int64_t>(ids.size());
  sim::Work work = WorkOf(*std::move(lowered), n, kSteps);
  work.batch.instance_ids = ids;
  work.options.recording = sim::Recording::kSummary;
  work.gradient->return_tree = true;
  std::vector<double> x = Sines(4 * n, 0.37);
  std::vector<double> y;
  for (int64_t row = 0; row < n; ++row) y.push_back(row % 4 == 1 ? 0.25 : 1.0);
  if (bad == Bad::kForward) x[static_cast<size_t>(4 * (n / 2))] = kInfinity;
  if (bad == Bad::kAdjoint) y[static_cast<size_t>(n / 3)] = 0.0;
  if (bad != Bad::kNone) work.gradient->reduction = sim::InstanceReduction::kFiniteOnly;
  Bind(work, InputKind::kState, "x", {Doubles(x, {n, 1, 4}), true, false});
  Bind(work, InputKind::kState, "y", {Doubles(y, {n}), true, false});
  Bind(work, InputKind::kParam, "w", Shared(Sines(20, 0.7), {4, 5}));
  Bind(work, InputKind::kParam, "c", Shared(Sines(5, 1.1), {1, 5}));
  Bind(work, InputKind::kParam, "v", Shared(Sines(20, 0.9), {5, 4}));
  Bind(work, InputKind::kParam, "k", Shared({0.75}, {}));
  Bind(work, InputKind::kParam, "s", Shared({1.25, 0.5, 2.0}, {3}));
  Bind(work, InputKind::kParam, "g", Shared({1.5}, {}));
  Bind(work, InputKind::kParam, "p", Shared({0.3}, {}));
  return work;
}

std::string Difference(const sim::equality::Observed& expected, const sim::Work& work,
                       const sim::CudaExecutorOptions& options,
                       const HostShimOptions& device = {}) {
  const auto actual = sim::equality::Observe(
      std::shared_ptr<sim::Executor>(MakeCudaExecutor(MakeHostShimDevice(device), options)), work);
  if (!actual.ok()) return actual.status().ToString();
  if (auto difference = sim::equality::FirstDifference(expected, *actual)) return *difference;
  for (size_t k = 0; k < expected.result.gradients.size(); ++k) {
    const std::string difference =
        GradientDifference(expected.result.gradients[k], actual->result.gradients[k]);
    if (!difference.empty()) return "gradient " + std::to_string(k) + ": " + difference;
  }
  return "";
}

std::vector<sim::CudaExecutorOptions> BothMappings() {
  return {{.mapping = Mapping::kThreadPerInstance, .block = 32, .grid = 2},
          {.mapping = Mapping::kBlockPerInstance, .block = 32, .grid = 3}};
}

// Chunks that cut the steps in different places.
void ExpectReference(sim::Work work, const std::vector<int64_t>& chunks, const std::string& story,
                     const std::vector<sim::CudaExecutorOptions>& options = BothMappings(),
                     int64_t left_out = 0) {
  const auto expected = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
  ASSERT_TRUE(expected.ok()) << story << ": " << expected.status();
  EXPECT_EQ(expected->result.left_out, left_out) << story;
  for (const int64_t chunk : chunks) {
    for (const sim::CudaExecutorOptions& one : options) {
      work.chunk_steps = chunk;
      EXPECT_EQ(Difference(*expected, work, one), "")
          << story << ", " << MappingName(*one.mapping) << ", chunks of " << chunk;
    }
  }
}

std::vector<double> InstanceWeights(size_t count) {
  std::vector<double> weights;
  for (size_t k = 0; k < count; ++k)
    weights.push_back(k % 5 == 3 ? 1.0 : 0.1 * double(k % 11) - 0.3);
  return weights;
}

TEST(WeightsTest, EveryFormatAndAccumulatorHasTheBitsOfTheReference) {
  struct Formats {
    Format gradient, accumulator;
    double loss_scale = 1.0;
  };
  const std::vector<uint64_t> ids = Unordered(Ids(250, 23, 11));
  for (const Formats& formats : std::vector<Formats>{{Format::kF32, Format::kF32, 1024.0},
                                                     {Format::kF64, Format::kF64},
                                                     {Format::kF32, Format::kF64},
                                                     {Format::kBf16, Format::kF32},
                                                     {Format::kBf16, Format::kBf16},
                                                     {Format::kF16, Format::kF32, 4096.0},
                                                     {Format::kF32, Format::kBf16},
                                                     {Format::kF64, Format::kF32}}) {
    sim::Work work =
        WorkOver(ids, GradientsIn(formats.gradient, formats.accumulator, formats.loss_scale));
    work.weights = InstanceWeights(ids.size());
    ExpectReference(work, {2},
                    std::string(precision::FormatName(formats.gradient)) + " in " +
                        std::string(precision::FormatName(formats.accumulator)));
  }
}

TEST(WeightsTest, EveryChoiceOfIdsHasTheBitsOfTheReference) {
  const precision::PolicySpec spec = GradientsIn(Format::kF32, Format::kF32);
  const auto expect = [&](const std::vector<uint64_t>& ids, const std::string& story) {
    ExpectReference(WorkOver(ids, spec), {1, 3, kSteps}, story);
  };
  expect(Ids(0, 64), "dense");
  expect(Ids(250, 271), "not aligned");
  expect(Unordered(Ids(250, 40)), "unordered");
  expect(Unordered(Ids(7, 45, 37)), "sparse");
  expect(Ids(uint64_t{1} << 63, 30, 1000), "a block each");
  expect({~uint64_t{0}}, "one");
}

TEST(WeightsTest, RowsThatAreLeftOutGiveNothing) {
  const std::vector<uint64_t> ids = Unordered(Ids(240, 31, 3));
  for (const Bad bad : {Bad::kForward, Bad::kAdjoint}) {
    sim::Work work = WorkOver(ids, GradientsIn(Format::kF32, Format::kF32), bad);
    work.weights = InstanceWeights(ids.size());
    ExpectReference(work, {2, kSteps}, bad == Bad::kForward ? "forward" : "adjoint", BothMappings(),
                    1);
  }
}

TEST(WeightsTest, InstancesThatStopGiveNothingFromThenOn) {
  precision::PolicySpec spec = GradientsIn(Format::kF32, Format::kF32);
  spec.nonfinite = precision::NonFinite::kStop;
  constexpr int64_t kInstances = 21;
  sim::Work work = WorkOver(Ids(250, kInstances), spec);
  std::vector<double> u = Sines(kInstances * kSteps, 0.3);
  u[2 * kSteps + 3] = u[9 * kSteps] = kInfinity;
  Bind(work, InputKind::kControl, "u", {Doubles(u, {kInstances, kSteps}), true, true});
  ExpectReference(work, {1, 2, kSteps}, "stop");
}

TEST(WeightsTest, NoInstanceAndNoStepHaveTheBitsOfTheReference) {
  ExpectReference(WorkOver({}, GradientsIn(Format::kF32, Format::kF32)), {1}, "no instance");
  sim::Work work = WorkOver(Ids(3, 5), GradientsIn(Format::kF32, Format::kF32));
  work.batch.steps = 0;
  ExpectReference(work, {1}, "no step");
}

// What launches give lies in memory of the host then.
TEST(WeightsTest, WindowsMayLieInPinnedMemory) {
  std::vector<sim::CudaExecutorOptions> options = BothMappings();
  for (sim::CudaExecutorOptions& one : options) one.record_bytes = 0;
  ExpectReference(WorkOver(Ids(250, 23), GradientsIn(Format::kF32, Format::kF32)), {3}, "pinned",
                  options);
}

// What the tests above would not notice would not be tested.
TEST(WeightsTest, FaultsInTheSumsAreNoticed) {
  const std::vector<uint64_t> ids = Unordered(Ids(240, 31, 3));
  std::vector<sim::Work> works;
  std::vector<sim::equality::Observed> expected;
  for (const Format format : {Format::kBf16, Format::kF32}) {
    sim::Work& work = works.emplace_back(WorkOver(ids, GradientsIn(format, Format::kF32, 1024.0)));
    work.weights = InstanceWeights(ids.size());
    work.chunk_steps = 3;
    auto observed = sim::equality::Observe(sim::MakeReferenceExecutor(), work);
    ASSERT_TRUE(observed.ok()) << observed.status();
    expected.push_back(*std::move(observed));
  }
  struct Fault {
    std::string right, wrong;
  };
  const std::vector<Fault> faults = {
      {"(read_time - args.window_first)", "0"},
      {"self.OpenEntry();\n        ReverseStep", "ReverseStep"},
      {"self.CloseEntry();\n      }\n      __syncthreads", "}\n      __syncthreads"},
      {"view.weight[place]", "1.0"},
      {"view.weight[place]", "view.weight[row]"},
      {"view.row[place]", "place"},
      {"top = Arithmetic::Join(stack[--depth], top)", "top = stack[--depth]"},
      {"int joins = view.joins[place]", "int joins = depth"},
      {"precision::Mul(kFormat, weight, x)", "weight * x"},
      {"return precision::Lane<kFormat>::Round(sum)", "return sum"},
      {"return precision::Lane<kFormat>::Add(total, sum)", "return total + sum"},
      {"entry = view.entries - 1; entry >= 0; --entry", "entry = 0; entry < view.entries; ++entry"},
      {"Number sum = *total", "Number sum = 0"},
      {"if (view.nonzero[row] == 0) atomicOr", "if (row < 0) atomicOr"},
      {"if (magnitude < static_cast<Bits>(view.least_told)) return;", ""},
      {"smallest = magnitude < smallest ? magnitude : smallest", "smallest = magnitude"},
      {"largest = magnitude > largest ? magnitude : largest", "largest = magnitude"}};
  for (const sim::CudaExecutorOptions& options : BothMappings()) {
    for (const Fault& fault : faults) {
      const auto plant = [&](const std::string& given) {
        std::string text = WithKernels(given);
        const size_t at = text.find(fault.right);
        EXPECT_NE(at, std::string::npos) << fault.right;
        return at == std::string::npos ? text : text.replace(at, fault.right.size(), fault.wrong);
      };
      const auto noticed = [&](size_t k) {
        const std::string difference = Difference(expected[k], works[k], options, {.plant = plant});
        EXPECT_EQ(difference.find("INTERNAL"), std::string::npos) << difference;  // it compiles
        return !difference.empty();
      };
      EXPECT_TRUE(noticed(0) || noticed(1))
          << MappingName(*options.mapping) << ": " << fault.wrong << " for " << fault.right;
    }
  }
}

struct Ranges : sim::Observer {
  void OnAdjoint(int64_t, const sim::AdjointChunk&) override { ++count; }
  int count = 0;
};

TEST(WeightsTest, RangesGetShorterWhereWindowsFillTheBudget) {
  constexpr int64_t kInstances = 1000;
  sim::Work work = WorkOver(Ids(250, kInstances), GradientsIn(Format::kF32, Format::kF32));
  const auto executor = std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(
      MakeHostShimDevice(), {.mapping = Mapping::kThreadPerInstance, .block = 32, .grid = 2}));
  const auto run = executor->Create(work.batch, work.options);
  ASSERT_TRUE(run.ok()) << run.status();
  // Numbers of w, c, v, k, s and g.
  constexpr int64_t kStepBytes = 4 * kInstances * (20 + 5 + 20 + 1 + 3 + 1);
  EXPECT_GE((*run)->AdjointBytes(0, 3) - (*run)->AdjointBytes(0, 2), kStepBytes);
  work.chunk_steps = kSteps;
  std::vector<int> ranges_of;
  std::vector<sim::WorkResult> results;
  for (const bool large : {true, false}) {
    if (!large) work.memory_budget_bytes = 3 * kStepBytes + (*run)->SavedBytes();
    Ranges ranges;
    auto result = sim::Engine(executor).Execute(work, ranges);
    ASSERT_TRUE(result.ok()) << result.status();
    ranges_of.push_back(ranges.count);
    results.push_back(*std::move(result));
  }
  EXPECT_LT(ranges_of[0], ranges_of[1]);
  for (size_t k = 0; k < results[0].gradients.size(); ++k) {
    EXPECT_EQ(GradientDifference(results[0].gradients[k], results[1].gradients[k]), "") << k;
  }
}

}  // namespace
}  // namespace simgrad::tests
