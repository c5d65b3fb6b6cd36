#include "sim/program/numerical_program.h"

#include "sim/program/simplify.h"

namespace simgrad::sim {
namespace {

// The same of what may be changed and of what may not.
template <class AnyRegion, class AnyAdjoint>
void Append(AnyAdjoint& adjoint, std::vector<AnyRegion*>& regions) {
  regions.push_back(&adjoint.terminal);
  if (adjoint.last) regions.push_back(&*adjoint.last);
  regions.insert(regions.end(), {&adjoint.inner, &adjoint.initial});
}

template <class AnyRegion, class AnyProgram>
std::vector<AnyRegion*> Collect(AnyProgram& numerical) {
  std::vector<AnyRegion*> regions = {&numerical.program.initial, &numerical.program.step};
  for (auto& objective : numerical.program.objectives) regions.push_back(&objective.terminal);
  if (numerical.adjoint) Append(*numerical.adjoint, regions);
  return regions;
}

}  // namespace

std::vector<Region*> RegionsOf(NumericalProgram& program) { return Collect<Region>(program); }

std::vector<const Region*> RegionsOf(const NumericalProgram& program) {
  return Collect<const Region>(program);
}

std::vector<const Region*> RegionsOf(const Adjoint& adjoint) {
  std::vector<const Region*> regions;
  Append(adjoint, regions);
  return regions;
}

const Region* TerminalOf(const NumericalProgram& program) {
  if (program.objective.empty()) return nullptr;
  const Objective* objective = program.program.FindObjective(program.objective);
  return objective != nullptr && objective->HasTerminal() ? &objective->terminal : nullptr;
}

std::vector<bool> ReadInputs(const NumericalProgram& program) {
  const Program& p = program.program;
  std::vector<bool> read(p.values.size(), false);
  MarkUses(p.initial, read);
  MarkUses(p.step, read);
  if (const Region* terminal = TerminalOf(program)) MarkUses(*terminal, read);
  std::vector<bool> inputs;
  for (const Input& input : p.inputs) inputs.push_back(read[Index(input.value)]);
  return inputs;
}

Overflow OverflowInForce(const precision::Policy& policy, const Op& op) {
  if (op.attributes.overflow) return *op.attributes.overflow;
  return policy.At(op.role, op.site).overflow;
}

}  // namespace simgrad::sim
