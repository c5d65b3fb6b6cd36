#include "sim/program/draws.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim {
namespace {

bool IsDraw(const Op& op) { return op.code == OpCode::kUniform || op.code == OpCode::kNormal; }

bool Draws(const Region& region, PassBudget& budget) {
  return std::any_of(region.ops.begin(), region.ops.end(), [&](const Op& op) {
    budget.Visit();
    return IsDraw(op) || std::any_of(op.regions.begin(), op.regions.end(),
                                     [&](const Region& nested) { return Draws(nested, budget); });
  });
}

ValueId InputOf(Program& program, InputKind kind, const std::string& name, const Type& type) {
  const ValueId value = program.AddValue(type, name);
  program.inputs.push_back({.kind = kind, .name = name, .value = value});
  return value;
}

void Number(Region& region, ValueId key, ValueId step, int32_t& next) {
  for (Op& op : region.ops) {
    if (IsDraw(op)) {
      op.operands = {key, step};
      op.attributes.draw = next++;
    }
    for (Region& nested : op.regions) Number(nested, key, step, next);
  }
}

}  // namespace

Program NumberDraws(Program program, PassBudget& budget) {
  if (!Draws(program.step, budget)) return program;
  const ValueId key = InputOf(program, InputKind::kData, kRandomKey, {ElementType::kI64, {}});
  const std::vector<int32_t> steps = program.InputsOf(InputKind::kStep);
  const ValueId step = steps.empty()
                           ? InputOf(program, InputKind::kStep, "step", {ElementType::kI32, {}})
                           : program.inputs[static_cast<size_t>(steps[0])].value;
  int32_t next = 0;
  Number(program.step, key, step, next);
  return program;
}

}  // namespace simgrad::sim
