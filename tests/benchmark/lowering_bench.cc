// Lowering the gradient of a large program: verified world to program, adjoint, text, fingerprint.
// Processor time of one thread.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "sim/program/lower.h"
#include "sim/program/verify.h"
#include "tests/sim/program/large_program.h"
#include "tests/sim/program/shaped_programs.h"

namespace simgrad::sim {
namespace {

precision::Policy PolicyOf(const std::string& preset) {
  precision::PolicySpec spec;
  spec.preset = preset;
  return std::get<precision::Policy>(precision::Resolve(spec));
}

void Lowered(benchmark::State& state, const std::string& preset, bool gradient) {
  const Program world = large::LargeProgram(state.range(0));
  const precision::Policy policy = PolicyOf(preset);
  std::optional<AdjointSpec> adjoint;
  if (gradient) adjoint = shaped::WantedOf(world, "cost");
  for (auto _ : state) {
    auto lowered = Lower(world, policy, "cost", adjoint);
    if (!lowered.ok()) return state.SkipWithError(std::string(lowered.status().message()).c_str());
    benchmark::DoNotOptimize(lowered);
  }
  state.counters["operations"] = static_cast<double>(large::OperationsOf(world));
}

void BM_LowerRollout(benchmark::State& state) { Lowered(state, "f32", false); }
void BM_LowerGradient(benchmark::State& state) { Lowered(state, "f32", true); }
void BM_LowerGradientBf16(benchmark::State& state) { Lowered(state, "bf16_safe", true); }

void BM_Verify(benchmark::State& state) {
  const Program world = large::LargeProgram(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Verify(world).ok());
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t operations : {1'000, 5'000, 20'000}) benchmark->Arg(operations);
  benchmark->Unit(benchmark::kMillisecond);
}

BENCHMARK(BM_Verify)->Apply(Sizes);
BENCHMARK(BM_LowerRollout)->Apply(Sizes);
BENCHMARK(BM_LowerGradient)->Apply(Sizes);
BENCHMARK(BM_LowerGradientBf16)->Apply(Sizes);

}  // namespace
}  // namespace simgrad::sim

BENCHMARK_MAIN();
