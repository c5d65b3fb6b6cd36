#include "sim/backend/cpu/exact_reduction.h"

#include <vector>

#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

using precision::Format;

double Load(const std::byte* at, Format format, int64_t i) {
  if (format == Format::kF64) return reinterpret_cast<const double*>(at)[i];
  return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
}

void Save(std::byte* at, Format format, int64_t i, double x) {
  if (format == Format::kF64) {
    reinterpret_cast<double*>(at)[i] = x;
  } else {
    reinterpret_cast<float*>(at)[i] = static_cast<float>(x);
  }
}

// Of one addition, in element-operations.
constexpr int64_t kExactWork = 8;

}  // namespace

void RunExactReduction(const Instruction& instruction, Lanes& lanes) {
  const auto& plan = *static_cast<const ExactReductionPlan*>(instruction.plan);
  Machine& machine = static_cast<Machine&>(lanes);
  const int64_t width = lanes.width[instruction.uniform];
  const int64_t n = plan.reduce.inputs;
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t result = 0; result < plan.reduce.results; ++result) {
    const int32_t* index = plan.reduce.index + result * n;
    for (int64_t j = 0; j < width; ++j) {
      machine.meter.Add(kExactWork * n);
      for (int64_t k = 0; k < n; ++k) {
        x[static_cast<size_t>(k)] = Load(lanes.at[instruction.a], plan.from, index[k] * width + j);
      }
      if (!plan.cumulative) {
        Save(lanes.at[instruction.to], plan.to, result * width + j,
             precision::Sum(plan.order, plan.accumulator, plan.to, x.data(), n));
        continue;
      }
      double total = 0.0;
      for (int64_t k = 0; k < n; ++k) {
        total = precision::Add(plan.accumulator, total, x[static_cast<size_t>(k)]);
        Save(lanes.at[instruction.to], plan.to, index[k] * width + j,
             precision::RoundTo(plan.to, total));
      }
    }
  }
}

}  // namespace simgrad::sim::cpu
