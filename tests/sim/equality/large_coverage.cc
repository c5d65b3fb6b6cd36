#include "tests/sim/equality/large_coverage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace simgrad::sim::equality {
namespace {

bool IsLoop(OpCode code) {
  return code == OpCode::kWhile || code == OpCode::kFor || code == OpCode::kWhileVjp ||
         code == OpCode::kForVjp;
}

// Returns the operations of the region with all that is in it.
int64_t Measure(const Program& program, const Region& region, int64_t depth, Extent& extent) {
  int64_t operations = 0;
  for (const Op& op : region.ops) {
    ++operations;
    for (ValueId id : op.results) {
      if (id == ValueId::kNone) continue;
      extent.elements = std::max(extent.elements, ElementCount(program[id].type.shape));
    }
    const int64_t inside = depth + (IsLoop(op.code) ? 1 : 0);
    extent.depth = std::max(extent.depth, inside);
    extent.loops += IsLoop(op.code) ? 1 : 0;
    int64_t body = 0;
    for (const Region& nested : op.regions) body += Measure(program, nested, inside, extent);
    if (IsLoop(op.code)) extent.largest_body = std::max(extent.largest_body, body);
    operations += body;
  }
  return operations;
}

}  // namespace

Extent ExtentOf(const NumericalProgram& program) {
  Extent extent;
  extent.operations = Measure(program.program, program.program.step, 0, extent);
  if (program.adjoint) {
    Extent reversed;
    extent.adjoint_operations = Measure(program.program, program.adjoint->inner, 0, reversed);
  }
  return extent;
}

void LargeCoverage::Add(const Case& made, const Observed& seen) {
  const Extent extent = ExtentOf(*made.work.batch.program);
  ++cases_;
  operations_ += extent.operations;
  adjoint_operations_ += extent.adjoint_operations;
  beyond_2000_ += extent.operations > 2000 ? 1 : 0;
  beyond_4000_ += extent.operations > 4000 ? 1 : 0;
  adjoint_beyond_500_ += extent.adjoint_operations > 500 ? 1 : 0;
  adjoint_beyond_1500_ += extent.adjoint_operations > 1500 ? 1 : 0;
  loops_in_loops_ += extent.depth >= 2 ? 1 : 0;
  depth_3_ += extent.depth >= 3 ? 1 : 0;
  long_bodies_ += extent.largest_body >= 100 ? 1 : 0;
  long_arrays_ += extent.elements >= 500 ? 1 : 0;
  many_loops_ += extent.loops >= 50 ? 1 : 0;
  gradients_ += made.work.gradient ? 1 : 0;
  const auto& health = seen.result.health;
  finite_ += std::all_of(health.begin(), health.end(), [](const auto& h) { return h.ok; });
  connected_ += std::any_of(seen.result.gradients.begin(), seen.result.gradients.end(),
                            [](const InputGradient& g) { return g.connected > 0; });
}

std::vector<LargeCoverage::Line> LargeCoverage::Lines() const {
  return {{"more than 2,000 operations", beyond_2000_, 18},
          {"more than 4,000 operations", beyond_4000_, 6},
          {"more than 500 operations in the adjoint", adjoint_beyond_500_, 8},
          {"more than 1,500 operations in the adjoint", adjoint_beyond_1500_, 3},
          {"loops in loops", loops_in_loops_, 28},
          {"loops three deep", depth_3_, 24},
          {"loops of 100 operations", long_bodies_, 24},
          {"50 loops", many_loops_, 5},
          {"arrays of 500 elements", long_arrays_, 28},
          {"gradients", gradients_, 15},
          {"every instance finite", finite_, 6},
          {"a gradient that is connected", connected_, 7}};
}

std::string LargeCoverage::Table() const {
  std::string text =
      absl::StrCat("of ", cases_, " large cases, with ", operations_,
                   " operations in their steps and ", adjoint_operations_, " in their adjoints:\n");
  for (const Line& line : Lines()) absl::StrAppend(&text, "  ", line.name, ": ", line.count, "\n");
  return text;
}

std::vector<std::string> LargeCoverage::Missing() const {
  std::vector<std::string> missing;
  for (const Line& line : Lines()) {
    if (line.count * 30 >= line.least * cases_) continue;
    missing.push_back(absl::StrCat(line.name, ": ", line.count, " of ", cases_, " cases"));
  }
  return missing;
}

}  // namespace simgrad::sim::equality
