#include "sim/program/draws.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim {
namespace {

bool IsDraw(const Op& op) {
  return op.code == OpCode::kUniform || op.code == OpCode::kNormal || IsStochastic(op);
}

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

// The inputs that draws hang on, added where the program has none.
struct Counters {
  ValueId key = ValueId::kNone;
  ValueId step = ValueId::kNone;
};
Counters CountersOf(Program& program) {
  const Input* const known = program.FindInput(InputKind::kData, kRandomKey);
  const ValueId key = known != nullptr
                          ? known->value
                          : InputOf(program, InputKind::kData, kRandomKey, {ElementType::kI64, {}});
  const std::vector<int32_t> steps = program.InputsOf(InputKind::kStep);
  const ValueId step = steps.empty()
                           ? InputOf(program, InputKind::kStep, "step", {ElementType::kI32, {}})
                           : program.inputs[static_cast<size_t>(steps[0])].value;
  return {key, step};
}

void Number(Region& region, const Counters& counters, int32_t& next) {
  for (Op& op : region.ops) {
    if (IsDraw(op)) {
      op.operands.insert(op.operands.end(), {counters.key, counters.step});
      op.attributes.draw = next++;
    }
    for (Region& nested : op.regions) Number(nested, counters, next);
  }
}

// A cast that AssignPrecision made or settled: it has no number yet.
bool IsUnnumbered(const Op& op) { return IsStochastic(op) && op.operands.size() == 1; }

bool HasUnnumbered(const Region& region, PassBudget& budget) {
  return std::any_of(region.ops.begin(), region.ops.end(), [&](const Op& op) {
    budget.Visit();
    return IsUnnumbered(op) ||
           std::any_of(op.regions.begin(), op.regions.end(),
                       [&](const Region& nested) { return HasUnnumbered(nested, budget); });
  });
}

// How many numbers NumberDraws gave out.
int32_t CountDraws(const Region& region) {
  int32_t count = 0;
  for (const Op& op : region.ops) {
    if (IsDraw(op) && !IsUnnumbered(op)) count = std::max(count, op.attributes.draw + 1);
    for (const Region& nested : op.regions) count = std::max(count, CountDraws(nested));
  }
  return count;
}

void NumberCasts(Region& region, const Counters& counters, int32_t& next) {
  for (Op& op : region.ops) {
    if (IsUnnumbered(op)) {
      op.operands.insert(op.operands.end(), {counters.key, counters.step});
      op.attributes.draw = next++;
    }
    for (Region& nested : op.regions) NumberCasts(nested, counters, next);
  }
}

// In a region that no step runs the step counts as 0: a literal at its beginning.
void NumberOutside(Program& program, Region& region, Counters counters, int32_t& next,
                   PassBudget& budget) {
  if (!HasUnnumbered(region, budget)) return;
  counters.step = program.AddValue({ElementType::kI32, {}});
  NumberCasts(region, counters, next);
  Op zero;
  zero.code = OpCode::kLiteral;
  zero.attributes.literal = {0.0};
  zero.results = {counters.step};
  budget.WroteValue(program[counters.step]);
  budget.WroteOp(zero);
  region.ops.insert(region.ops.begin(), std::move(zero));
}

}  // namespace

Program NumberDraws(Program program, PassBudget& budget) {
  if (!Draws(program.step, budget)) return program;
  const Counters counters = CountersOf(program);
  int32_t next = 0;
  Number(program.step, counters, next);
  return program;
}

NumericalProgram NumberCasts(NumericalProgram numerical, PassBudget& budget) {
  const std::vector<const Region*> regions = RegionsOf(std::as_const(numerical));
  if (std::none_of(regions.begin(), regions.end(),
                   [&](const Region* region) { return HasUnnumbered(*region, budget); })) {
    return numerical;
  }
  Program& program = numerical.program;
  const Counters counters = CountersOf(program);
  int32_t next = CountDraws(program.step);
  NumberCasts(program.step, counters, next);
  NumberOutside(program, program.initial, counters, next, budget);
  for (Objective& objective : program.objectives) {
    NumberOutside(program, objective.terminal, counters, next, budget);
  }
  if (!numerical.adjoint) return numerical;
  numerical.adjoint_spec->wanted.resize(program.inputs.size());
  Adjoint& adjoint = *numerical.adjoint;
  next = kFirstAdjointDraw;
  NumberOutside(program, adjoint.terminal, counters, next, budget);
  if (adjoint.last) NumberCasts(*adjoint.last, counters, next);
  NumberCasts(adjoint.inner, counters, next);
  NumberOutside(program, adjoint.initial, counters, next, budget);
  return numerical;
}

}  // namespace simgrad::sim
