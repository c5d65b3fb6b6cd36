#include "sim/program/objective.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/program/simplify.h"

namespace simgrad::sim {
namespace {

// An identity in role `role`, at the end of `ops`.
ValueId AppendCast(Program& program, std::vector<Op>& ops, ValueId value, Role role,
                   const std::string& label, PassBudget& budget) {
  const Value source = program[value];
  const ValueId result = program.AddValue(source.type, source.name);
  ops.push_back({.code = OpCode::kCast,
                 .role = role,
                 .operands = {value},
                 .results = {result},
                 .label = label});
  budget.WroteValue(source);
  budget.WroteOp(ops.back());
  return result;
}

// By value, whether an operation of the region makes it. A copy (which Simplify removes) makes what
// its operand is, and so does a call with its own vjp (which RemoveOwnVjps removes).
std::vector<bool> Computed(const Program& program, const Region& region, PassBudget& budget) {
  std::vector<bool> computed(program.values.size(), false);
  for (const Op& op : region.ops) {
    budget.Visit(1 + static_cast<int64_t>(op.results.size()));
    if (op.code == OpCode::kLiteral) continue;
    if (op.code == OpCode::kOwnVjp) {
      const size_t given = op.operands.size() - op.results.size();
      for (size_t r = 0; r < op.results.size(); ++r) {
        computed[Index(op.results[r])] = computed[Index(op.operands[given + r])];
      }
      continue;
    }
    const bool made = !IsCopy(program, op) || computed[Index(op.operands[0])];
    for (ValueId id : op.results) computed[Index(id)] = made;
  }
  return computed;
}

Region BroughtIn(Program& program, Region region, PassBudget& budget) {
  std::unordered_set<size_t> keep;  // inputs other than states, literals, objective results
  for (const Input& input : program.inputs) {
    if (input.kind != InputKind::kState) keep.insert(Index(input.value));
  }
  for (const Op& op : region.ops) {
    budget.Visit();
    if (op.role != Role::kObjective && op.code != OpCode::kLiteral) continue;
    for (ValueId id : op.results) keep.insert(Index(id));
  }
  std::vector<Op> ops;
  std::unordered_map<size_t, ValueId> casts;
  for (Op& op : region.ops) {
    const bool reads = op.role == Role::kObjective && op.code != OpCode::kCast;
    for (ValueId& id : op.operands) {
      budget.Visit();
      if (!reads || !program.IsReal(id) || keep.count(Index(id)) != 0) continue;
      ValueId& brought = casts.try_emplace(Index(id), ValueId::kNone).first->second;
      if (brought == ValueId::kNone) {
        brought = AppendCast(program, ops, id, Role::kObjective, op.label, budget);
      }
      id = brought;
    }
    ops.push_back(std::move(op));
  }
  region.ops = std::move(ops);
  return region;
}

}  // namespace

NumericalProgram ChooseObjective(Program world, const std::string& name, PassBudget& budget) {
  NumericalProgram numerical;
  numerical.program = std::move(world);
  Program& program = numerical.program;
  std::erase_if(program.objectives, [&](const Objective& other) { return other.name != name; });
  std::vector<Op>& ops = program.step.ops;
  const std::vector<bool> computed = Computed(program, program.step, budget);
  for (Export& exported : program.exports) {
    if (!program.IsReal(exported.value) || computed[Index(exported.value)]) continue;
    exported.value = AppendCast(program, ops, exported.value, Role::kDynamics, "", budget);
  }
  if (program.objectives.empty()) return numerical;
  numerical.objective = name;
  Region stage = std::exchange(program.objectives.front().stage, {});
  if (stage.yields.empty()) return numerical;
  for (Op& op : stage.ops) ops.push_back(std::move(op));
  numerical.stage_cost = AppendCast(program, ops, stage.yields[0], Role::kObjective, "", budget);
  return numerical;
}

NumericalProgram BringIntoObjective(NumericalProgram numerical, PassBudget& budget) {
  Program& program = numerical.program;
  program.step = BroughtIn(program, std::move(program.step), budget);
  for (Objective& objective : program.objectives) {
    objective.terminal = BroughtIn(program, std::move(objective.terminal), budget);
  }
  return numerical;
}

}  // namespace simgrad::sim
