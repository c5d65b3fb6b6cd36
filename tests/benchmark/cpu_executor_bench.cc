// The engine on the ball of docs/performance.md, beside a SIMD loop written by hand. One thread.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/backend/compiled/compiled_executor.h"
#include "sim/engine.h"
#include "sim/program/lower.h"
#include "sim/text.h"
#include "sim/worlds/worlds.h"
#include "tests/benchmark/handwritten_ball.h"

namespace simgrad::sim {
namespace {

constexpr int64_t kInstances = 4096;
constexpr int64_t kSteps = 2000;

std::vector<float> Heights(int64_t instances) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> height(0.1f, 1.0f);
  std::vector<float> heights(static_cast<size_t>(instances));
  for (float& y : heights) y = height(generator);
  return heights;
}

struct Setting {
  std::string preset = "f32";
  bool gradient = false;
  Recording recording = Recording::kNone;
  std::vector<float> y0 = Heights(kInstances);
  std::vector<float> v0;  // empty: zeros
  float k = 1.0f;
  std::vector<float> gains;  // per instance; empty: k
  double max_iter = 25.0;
};

std::shared_ptr<const NumericalProgram> ProgramOf(const Setting& setting) {
  const Program world =
      *BuildWorld("bouncing_ball", {{"clamp", false}, {"max_iter", setting.max_iter}});
  precision::PolicySpec spec;
  spec.preset = setting.preset;
  std::optional<AdjointSpec> adjoint;
  const std::string objective = setting.gradient ? "final_height" : "";
  if (setting.gradient) {
    adjoint.emplace();
    adjoint->objective = objective;
    for (const Input& input : world.inputs) {
      adjoint->wanted.push_back(IsDifferentiable(world, input));
    }
  }
  const auto policy = std::get<precision::Policy>(precision::Resolve(spec));
  return std::make_shared<NumericalProgram>(*Lower(world, policy, objective, adjoint));
}

Tensor Column(const std::vector<float>& values) {
  Tensor tensor = Tensor::Zeros(DType::kF32, {static_cast<int64_t>(values.size()), 1});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

Work WorkOf(const Setting& setting, std::shared_ptr<const NumericalProgram> program) {
  Work work;
  const Program& declared = program->program;
  work.batch.instances = static_cast<int64_t>(setting.y0.size());
  work.batch.steps = kSteps;
  for (size_t i = 0; i < setting.y0.size(); ++i) work.batch.instance_ids.push_back(i);
  for (const Input& input : declared.inputs) {
    Binding binding;
    if (input.kind == InputKind::kState) {
      binding.per_instance = true;
      const std::vector<float> zeros(setting.y0.size());
      const std::vector<float>& v0 = setting.v0.empty() ? zeros : setting.v0;
      binding.tensor = Column(input.name == "y" ? setting.y0 : v0);
    } else if (input.kind == InputKind::kParam && input.name == "k") {
      if (setting.gains.empty()) {
        binding.tensor = Tensor::Zeros(DType::kF32, {});
        binding.tensor.Set(0, static_cast<double>(setting.k));
      } else {
        binding.per_instance = true;
        binding.tensor = Column(setting.gains);
        binding.tensor.shape = {work.batch.instances};
      }
    }
    work.batch.inputs.push_back(std::move(binding));
  }
  work.batch.program = std::move(program);
  work.options.recording = setting.recording;
  work.options.threads = 1;
  if (setting.gradient) work.gradient.emplace();
  return work;
}

// Counts the iterations on the side, with diagnostics.
class IterationCounter : public Observer {
 public:
  void OnForward(const ForwardChunk& chunk) override {
    for (const TerminationStep& step : chunk.diagnostics.terminations[0]) {
      iterations += static_cast<double>(step.iterations_sum);
      runs += static_cast<double>(step.runs);
    }
  }
  double iterations = 0, runs = 0;
};

void Measure(benchmark::State& state, const Setting& setting) {
  // The best code, made by a run that is not timed.
  const Engine engine(compiled::MakeCompiledExecutor(compiled::KernelOptions()));
  const auto program = ProgramOf(setting);
  Observer nobody;
  if (const auto warm = engine.Execute(WorkOf(setting, program), nobody); !warm.ok()) {
    state.SkipWithError(warm.status().ToString().c_str());
  }
  for (auto _ : state) {
    state.PauseTiming();
    Work work = WorkOf(setting, program);
    Observer observer;
    state.ResumeTiming();
    const auto result = engine.Execute(std::move(work), observer);
    if (!result.ok()) state.SkipWithError(result.status().ToString().c_str());
    benchmark::DoNotOptimize(result);
  }
  Setting counted = setting;
  counted.gradient = false;
  counted.recording = Recording::kSummary;
  IterationCounter counter;
  if (engine.Execute(WorkOf(counted, ProgramOf(counted)), counter).ok()) {
    state.counters["iterations_per_step"] = counter.iterations / counter.runs;
  }
}

void Handwritten(benchmark::State& state) {
  const std::vector<float> y0 = Heights(kInstances);
  for (auto _ : state) {
    std::vector<float> y = y0;
    std::vector<float> v(y.size());
    const int64_t iterations =
        yardstick::RunHandwritten({}, y.data(), v.data(), kInstances, kSteps);
    benchmark::DoNotOptimize(y.data());
    state.counters["iterations_per_step"] =
        static_cast<double>(iterations) / static_cast<double>(kInstances * kSteps);
  }
}

// The records of every step.
class StepCollector : public Observer {
 public:
  void OnForward(const ForwardChunk& chunk) override {
    const StepDiagnostics& made = chunk.diagnostics;
    const auto add = [](auto& all, const auto& next) {
      all.insert(all.end(), next.begin(), next.end());
    };
    add(projection, made.terminations[0]);
    add(contact, made.events[0]);
  }
  std::vector<TerminationStep> projection;
  std::vector<EventStep> contact;
};

// In f32, which differences of unlike numbers are rounded to.
bool IsNear(float found, double expected) {
  return std::abs(found - std::abs(expected)) <= 1e-6 * std::abs(expected);
}

// Counts are equal; a rounded difference may put a margin into the next bucket.
bool SaysTheSame(const yardstick::Record& found, const TerminationStep& loop,
                 const EventStep& event) {
  std::array<uint32_t, kIterationBuckets> iterations{};
  uint64_t sum = 0;
  for (size_t n = 0; n < found.runs.size(); ++n) {
    iterations[IterationBucket(n)] += found.runs[n];
    sum += n * found.runs[n];
  }
  uint32_t moved = 0;
  for (size_t i = 0; i < found.histogram.size(); ++i) {
    moved += found.histogram[i] - std::min(found.histogram[i], loop.histogram[i]);
  }
  return iterations == loop.iterations && sum == loop.iterations_sum && moved <= 1 &&
         found.near_stopped == loop.near_stopped && found.near_continued == loop.near_continued &&
         IsNear(found.projection.margin, loop.margin.absolute) &&
         IsNear(found.projection.ulps, loop.margin.ulps) && found.contacts == event.count &&
         found.changes == event.changes && IsNear(found.contact.margin, event.margin.absolute) &&
         IsNear(found.contact.ulps, event.margin.ulps);
}

// Whether the loop by hand records what the engine records: empty, or what differs.
std::string DifferenceFromEngine(const yardstick::Records& found) {
  Setting setting;
  setting.recording = Recording::kSummary;
  const Engine engine(compiled::MakeCompiledExecutor(compiled::KernelOptions()));
  StepCollector collector;
  const auto result = engine.Execute(WorkOf(setting, ProgramOf(setting)), collector);
  if (!result.ok()) return result.status().ToString();
  if (found.signatures != result->path_signatures) return "other path signatures";
  if (collector.projection.size() != found.steps.size()) return "another number of steps";
  for (size_t t = 0; t < found.steps.size(); ++t) {
    if (!SaysTheSame(found.steps[t], collector.projection[t], collector.contact[t])) {
      return Cat("other records at step ", t);
    }
  }
  return "";
}

void HandwrittenSummary(benchmark::State& state) {
  const std::vector<float> y0 = Heights(kInstances);
  yardstick::Records records;
  for (auto _ : state) {
    std::vector<float> y = y0;
    std::vector<float> v(y.size());
    records = yardstick::RecordHandwritten({}, y.data(), v.data(), kInstances, kSteps);
    benchmark::DoNotOptimize(records);
  }
  static const std::string difference = DifferenceFromEngine(records);
  if (!difference.empty()) state.SkipWithError(difference.c_str());
}

// Balls that rest on the floor; one lane in 256, or all that are there, has a gain so small that
// its loop runs to the cap in every step: a ball with that gain sinks for good, from its first
// contact on.
Setting Resting(int64_t instances, int64_t every) {
  Setting setting;
  setting.max_iter = 200.0;
  setting.y0.assign(static_cast<size_t>(instances), 0.05f);
  for (int64_t i = 0; i < instances; ++i) {
    setting.gains.push_back(every > 0 && i % every == 0 ? 1e-6f : 1.0f);
  }
  return setting;
}

void RegisterAll() {
  const auto add = [](const std::string& name, Setting setting) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [setting](benchmark::State& state) { Measure(state, setting); })
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.2);
  };
  for (const char* preset : {"f32", "bf16_unsafe", "f16_unsafe"}) {
    Setting setting;
    setting.preset = preset;
    const std::string format = std::string(preset).substr(0, std::string(preset).find('_'));
    add("BM_Rollout/" + format, setting);
    setting.recording = Recording::kSummary;
    add("BM_RolloutSummary/" + format, setting);
    setting.recording = Recording::kNone;
    setting.gradient = true;
    add("BM_Gradient/" + format, setting);
  }
  benchmark::RegisterBenchmark("BM_HandWritten/f32", Handwritten)
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.2);
  benchmark::RegisterBenchmark("BM_HandWrittenSummary/f32", HandwrittenSummary)
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.2);
  add("BM_AtMaxIter/none_of_256", Resting(256, 0));
  add("BM_AtMaxIter/one_of_256", Resting(256, 256));
  add("BM_AtMaxIter/one_alone", Resting(1, 1));
  add("BM_AtMaxIter/none_of_4096", Resting(4096, 0));
  add("BM_AtMaxIter/sixteen_of_4096", Resting(4096, 256));
  add("BM_AtMaxIter/sixteen_alone", Resting(16, 1));
}

}  // namespace
}  // namespace simgrad::sim

int main(int argc, char** argv) {
  simgrad::sim::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
