#include "sim/program/numerical_program.h"

#include "sim/program/simplify.h"

namespace simgrad::sim {

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
