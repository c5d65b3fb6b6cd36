#include "sim/backend/compiled/mapping.h"

#include <algorithm>

namespace simgrad::sim::compiled {
namespace {

using plan::Code;
using plan::Statement;

// Turns of a loop of unknown length: enough to weigh more than what stands around it.
constexpr double kUnknownTurns = 8;

struct Counts {
  double numbers = 0;  // executed statements
  double vectors = 0;  // of them, those of parallel loops by vectors of elements
};

Counts CountsOf(const std::vector<Statement>& block, int64_t width) {
  Counts counts;
  for (const Statement& s : block) {
    if (s.body.empty()) {
      ++counts.numbers;
      ++counts.vectors;
      continue;
    }
    const Counts inside = CountsOf(s.body, width);
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

Mapping ChooseMapping(const plan::Plan& plan, int64_t instances, int64_t width) {
  const Counts step = CountsOf(plan.step.statements, width);
  const double groups = static_cast<double>((instances + width - 1) / width);
  const bool elements = static_cast<double>(instances) * step.vectors <= groups * step.numbers;
  return elements ? Mapping::kElements : Mapping::kLanes;
}

}  // namespace simgrad::sim::compiled
