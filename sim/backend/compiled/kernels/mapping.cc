#include "sim/backend/compiled/kernels/mapping.h"

#include <algorithm>

namespace simgrad::sim::compiled {
namespace {

using plan::Code;
using plan::Statement;

// Turns of a loop of unknown length: enough to weigh more than what stands around it.
constexpr double kUnknownTurns = 8;

StepCounts CountsOf(const std::vector<Statement>& block, int64_t width) {
  StepCounts counts;
  for (const Statement& s : block) {
    if (s.body.empty()) {
      ++counts.numbers;
      ++counts.vectors;
      continue;
    }
    const StepCounts inside = CountsOf(s.body, width);
    const bool loops = s.code == Code::kRepeat || (s.code == Code::kEach && !s.operands.empty());
    const double turns = loops                   ? kUnknownTurns
                         : s.code == Code::kEach ? static_cast<double>(s.number)
                                                 : 1;
    const bool holds_blocks = std::any_of(s.body.begin(), s.body.end(),
                                          [](const Statement& in) { return !in.body.empty(); });
    const bool is_widened = s.code == Code::kEach && s.parallel && !loops && !holds_blocks;
    counts.numbers += turns * inside.numbers;
    counts.vectors +=
        inside.vectors *
        (is_widened ? static_cast<double>(s.number / width + s.number % width) : turns);
  }
  return counts;
}

}  // namespace

StepCounts CountsOf(const plan::Plan& plan, int64_t width) {
  return CountsOf(plan.step.statements, width);
}

Mapping ChooseMapping(const StepCounts& step, int64_t instances, int64_t width) {
  const double groups = static_cast<double>((instances + width - 1) / width);
  const double by_elements = static_cast<double>(instances) * step.vectors;
  const double by_lanes = groups * step.numbers;
  const bool elements = instances < width ? by_elements <= by_lanes : by_elements < by_lanes;
  return elements ? Mapping::kElements : Mapping::kLanes;
}

}  // namespace simgrad::sim::compiled
