// The elementary functions of f32 in a loop over 4096 numbers, as a compiler vectorises it for AVX2.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "precision/narrow_elementary.h"

namespace simgrad::precision {
namespace {

constexpr int kElements = 4096;

// Time an iteration: that of one element.
template <auto kFunction>
void Measure(benchmark::State& state, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> argument(low, high);
  std::vector<float> x(kElements);
  std::vector<float> y(kElements);
  for (float& one : x) one = argument(generator);
  const float* from = x.data();
  float* __restrict to = y.data();
  while (state.KeepRunningBatch(kElements)) {
    for (int i = 0; i < kElements; ++i) {
      to[i] = static_cast<float>(kFunction(static_cast<double>(from[i])));
    }
    benchmark::ClobberMemory();
  }
}

void Register() {
  const auto add = [](const char* name, auto function, float low, float high) {
    benchmark::RegisterBenchmark(name, function, low, high);
  };
  add("f32/exp", Measure<narrow::Exp>, -10.0f, 10.0f);
  add("f32/expm1", Measure<narrow::Expm1>, -10.0f, 10.0f);
  add("f32/log", Measure<narrow::Log>, 0.01f, 10.0f);
  add("f32/log1p", Measure<narrow::Log1p>, 0.01f, 10.0f);
  add("f32/sin", Measure<narrow::SinOfModerate>, -100.0f, 100.0f);
  add("f32/cos", Measure<narrow::CosOfModerate>, -100.0f, 100.0f);
  add("f32/tanh", Measure<narrow::Tanh>, -5.0f, 5.0f);
  add("f32/sigmoid", Measure<narrow::Sigmoid>, -10.0f, 10.0f);
  add("f32/softplus", Measure<narrow::Softplus>, -10.0f, 10.0f);
}

}  // namespace
}  // namespace simgrad::precision

int main(int count, char** arguments) {
  simgrad::precision::Register();
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
}
