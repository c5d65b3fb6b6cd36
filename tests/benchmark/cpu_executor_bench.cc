// The cpu executor on the ball of docs/performance.md, one thread, beside a SIMD loop written by
// hand for this very ball.
//
// The ball: 4096 instances, 2000 steps, one element, projection contact, clamp false, y0 uniform in
// 0.1 to 1, h 0.01, tol 1e-4, k 1, no trajectory.
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "sim/backend/cpu/cpu_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/worlds/worlds.h"
#include "tests/benchmark/hand_written_ball.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 4096;
constexpr int64_t kSteps = 2000;

std::vector<float> Heights(int64_t instances) {
  std::mt19937_64 random(1);
  std::vector<float> heights(static_cast<size_t>(instances));
  for (float& y : heights) {
    y = static_cast<float>(0.1 + 0.9 * 0x1p-53 * static_cast<double>(random() >> 11));
  }
  return heights;
}

Binding PerInstance(const std::vector<float>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  Binding binding{Tensor::Zeros(DType::kF32, {n, 1}), true, false};
  for (int64_t i = 0; i < n; ++i) binding.tensor.Set(i, values[static_cast<size_t>(i)]);
  return binding;
}

Binding SharedNumber(double value) {
  Binding binding{Tensor::Zeros(DType::kF64, {}), false, false};
  binding.tensor.Set(0, value);
  return binding;
}

struct BallOptions {
  std::string preset = "f32";
  Recording recording = Recording::kNone;
  bool gradient = false;
  double max_iter = 25;
  int64_t steps = kSteps;
};

Work BallWork(const std::vector<float>& heights, const BallOptions& options) {
  const Program world = *BuildWorld("bouncing_ball", {{"contact", std::string("projection")},
                                                      {"clamp", false},
                                                      {"max_iter", options.max_iter}});
  const auto policy = std::get<precision::Policy>(precision::Resolve({.preset = options.preset}));
  std::optional<AdjointSpec> spec;
  const std::string objective = options.gradient ? "final_height" : "";
  if (options.gradient) {
    spec = AdjointSpec{.objective = objective};
    for (const Input& input : world.inputs) spec->wanted.push_back(IsDifferentiable(world, input));
  }
  Work work;
  work.batch.program =
      std::make_shared<const NumericalProgram>(*Lower(world, policy, objective, spec));
  const int64_t n = static_cast<int64_t>(heights.size());
  work.batch.instances = n;
  work.batch.steps = options.steps;
  for (int64_t i = 0; i < n; ++i) work.batch.instance_ids.push_back(static_cast<uint64_t>(i));
  for (const Input& input : work.batch.program->program.inputs) {
    Binding binding;
    if (input.name == "y" && input.kind == InputKind::kState) binding = PerInstance(heights);
    if (input.name == "v") binding = PerInstance(std::vector<float>(heights.size(), 0.0f));
    if (input.name == "k") binding = SharedNumber(1.0);
    if (input.name == "h") binding = SharedNumber(0.01);
    work.batch.inputs.push_back(std::move(binding));
  }
  work.options.recording = options.recording;
  work.options.threads = 1;
  if (options.gradient) work.gradient.emplace();
  return work;
}

WorkResult Execute(const Work& work) {
  Observer observer;
  const std::shared_ptr<Executor> executor = MakeCpuExecutor();
  return *Engine(executor).Execute(work, observer);
}

void Measure(benchmark::State& state, const Work& work) {
  for (auto _ : state) benchmark::DoNotOptimize(Execute(work));
}

// Counts the iterations of the whole rollout.
class IterationCounter : public Observer {
 public:
  void OnForward(const ForwardChunk& chunk) override {
    for (const TerminationStep& step : chunk.diagnostics.terminations[0]) {
      iterations += static_cast<double>(step.iterations_sum);
    }
  }
  double iterations = 0.0;
};

void BM_Rollout(benchmark::State& state, const std::string& preset) {
  const std::vector<float> heights = Heights(kInstances);
  Measure(state, BallWork(heights, {.preset = preset}));
  IterationCounter counter;
  const std::shared_ptr<Executor> executor = MakeCpuExecutor();
  const Work counted = BallWork(heights, {.preset = preset, .recording = Recording::kSummary});
  benchmark::DoNotOptimize(Engine(executor).Execute(counted, counter));
  state.counters["iterations_per_step"] =
      counter.iterations / static_cast<double>(kInstances * kSteps);
}
BENCHMARK_CAPTURE(BM_Rollout, f32, "f32")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Rollout, bf16, "bf16_unsafe")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Rollout, f16, "f16_unsafe")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Rollout, f64, "f64")->Unit(benchmark::kMillisecond);

void BM_RolloutSummary(benchmark::State& state, const std::string& preset) {
  const Recording recording = Recording::kSummary;
  Measure(state, BallWork(Heights(kInstances), {.preset = preset, .recording = recording}));
}
BENCHMARK_CAPTURE(BM_RolloutSummary, f32, "f32")->Unit(benchmark::kMillisecond);

void BM_Gradient(benchmark::State& state, const std::string& preset) {
  Measure(state, BallWork(Heights(kInstances), {.preset = preset, .gradient = true}));
}
BENCHMARK_CAPTURE(BM_Gradient, f32, "f32")->Unit(benchmark::kMillisecond);

void BM_GradientSummary(benchmark::State& state, const std::string& preset) {
  Measure(state, BallWork(Heights(kInstances), {.preset = preset,
                                                .recording = Recording::kSummary,
                                                .gradient = true}));
}
BENCHMARK_CAPTURE(BM_GradientSummary, f32, "f32")->Unit(benchmark::kMillisecond);

// The loop by hand: AVX-512 where there is, else AVX2.
void BM_HandWritten(benchmark::State& state) {
  const std::vector<float> heights = Heights(kInstances);
  for (auto _ : state) {
    std::vector<float> y = heights;
    std::vector<float> v(heights.size(), 0.0f);
    yardstick::RunHandWrittenBall(y.data(), v.data(), kInstances, kSteps);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_HandWritten)->Name("BM_HandWritten/f32")->Unit(benchmark::kMillisecond);

// 256 balls high above the ground, of which one has sunk so deep that its loop runs to a cap of 1000
// in every step; none of them; and that one alone.
constexpr int64_t kFewSteps = 200;
constexpr double kHighCap = 1000;

std::vector<float> OneSunken(int64_t instances, int64_t sunken) {
  std::vector<float> heights(static_cast<size_t>(instances), 1.0e6f);
  for (int64_t i = 0; i < sunken; ++i) heights[static_cast<size_t>(i)] = -3.0e38f;
  return heights;
}

Work SunkenWork(int64_t instances, int64_t sunken) {
  return BallWork(OneSunken(instances, sunken), {.max_iter = kHighCap, .steps = kFewSteps});
}

void BM_OneLaneAtMaxIter(benchmark::State& state) { Measure(state, SunkenWork(256, 1)); }
BENCHMARK(BM_OneLaneAtMaxIter)->Unit(benchmark::kMicrosecond);
void BM_NoLaneAtMaxIter(benchmark::State& state) { Measure(state, SunkenWork(256, 0)); }
BENCHMARK(BM_NoLaneAtMaxIter)->Unit(benchmark::kMicrosecond);
void BM_OneLaneAtMaxIterAlone(benchmark::State& state) { Measure(state, SunkenWork(1, 1)); }
BENCHMARK(BM_OneLaneAtMaxIterAlone)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace simgrad::sim
