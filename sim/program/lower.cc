#include "sim/program/lower.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/op/expansion.h"
#include "sim/program/assign.h"
#include "sim/program/differentiate.h"
#include "sim/program/field_error.h"
#include "sim/program/print.h"
#include "sim/program/renumber.h"
#include "sim/program/simplify.h"

namespace simgrad::sim {
namespace {

std::string NameList(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) absl::StrAppend(&list, list.empty() ? "" : ", ", name);
  return list.empty() ? "none" : list;
}

absl::Status CheckSites(const Program& world, const precision::Policy& policy, PassBudget& budget) {
  std::vector<std::string> names;
  for (const Site& site : SitesOf(world, &budget)) names.push_back(site.name);
  const std::unordered_set<std::string> known(names.begin(), names.end());
  for (size_t i = 0; i < policy.sites.size(); ++i) {
    const std::string& name = policy.sites[i].first;
    if (known.count(name) != 0) continue;
    return FieldError(absl::StrCat("policy.sites[", i, "].site"),
                      absl::StrCat("world '", world.name, "' has no site '", name,
                                   "'; its sites: ", NameList(names)));
  }
  return absl::OkStatus();
}

absl::Status CheckWanted(const Program& world, const AdjointSpec& spec) {
  for (size_t i = 0; i < spec.wanted.size(); ++i) {
    if (!spec.wanted[i] || IsDifferentiable(world, world.inputs[i])) continue;
    const Input& input = world.inputs[i];
    return FieldError(
        absl::StrCat("wrt[", std::string(InputKindName(input.kind)), ".", input.name, "]"),
        "only real states, params and controls have gradients");
  }
  return absl::OkStatus();
}

// An identity in the role of its result, so that what leaves a region is computed by an operation.
ValueId AppendCast(Program& program, Region& region, ValueId value, Role role, PassBudget& budget) {
  Op op;
  op.code = OpCode::kCast;
  op.role = role;
  op.operands = {value};
  const Value source = program[value];
  op.results = {program.AddValue(source.type, source.name)};
  budget.WroteValue(source);
  budget.WroteOp(op);
  region.ops.push_back(op);
  return op.results[0];
}

// By value, whether an operation of the region makes it; a copy (which Simplify removes) makes what
// its operand is.
std::vector<bool> Computed(const Program& program, const Region& region, PassBudget& budget) {
  std::vector<bool> computed(program.values.size(), false);
  for (const Op& op : region.ops) {
    budget.Visit(1 + static_cast<int64_t>(op.results.size()));
    if (op.code == OpCode::kLiteral) continue;
    const bool made = !IsCopy(program, op) || computed[Index(op.operands[0])];
    for (ValueId id : op.results) computed[Index(id)] = made;
  }
  return computed;
}

// Puts the chosen stage cost behind the step, and drops every other objective.
void ChooseObjective(NumericalProgram& numerical, const std::string& name, PassBudget& budget) {
  Program& program = numerical.program;
  std::vector<Objective> chosen;
  for (Objective& objective : program.objectives) {
    if (objective.name == name) chosen.push_back(std::move(objective));
  }
  program.objectives = std::move(chosen);
  const std::vector<bool> computed = Computed(program, program.step, budget);
  for (Export& exported : program.exports) {
    const bool real = program[exported.value].type.element == ElementType::kReal;
    if (!real || computed[Index(exported.value)]) continue;
    exported.value = AppendCast(program, program.step, exported.value, Role::kDynamics, budget);
  }
  if (program.objectives.empty()) return;
  numerical.objective = name;
  Objective& objective = program.objectives.front();
  if (!objective.HasStage()) return;
  for (Op& op : objective.stage.ops) program.step.ops.push_back(std::move(op));
  numerical.stage_cost =
      AppendCast(program, program.step, objective.stage.yields[0], Role::kObjective, budget);
  objective.stage = {};
}

void AssignSlots(PrecisionAssigner& assigner, Region& region, size_t seeds) {
  for (size_t i = 0; i < region.args.size(); ++i) {
    if (region.args[i] == ValueId::kNone) continue;
    assigner.SetFormat(region.args[i], i < seeds ? Role::kObjective : Role::kAdjoint);
  }
  assigner.AssignRegion(region, Role::kAdjoint);
}

void AssignAll(NumericalProgram& numerical, PassBudget& budget) {
  Program& program = numerical.program;
  PrecisionAssigner assigner(program, numerical.policy, budget);
  if (program.HasInitial()) assigner.AssignRegion(program.initial, Role::kState);
  assigner.AssignRegion(program.step, Role::kState);
  Region* terminal = nullptr;
  if (!program.objectives.empty() && program.objectives.front().HasTerminal()) {
    terminal = &program.objectives.front().terminal;
    const size_t states = program.InputsOf(InputKind::kState).size();
    for (size_t i = 0; i < terminal->args.size(); ++i) {
      if (i < states) {
        assigner.SetFormat(terminal->args[i], Role::kState);
      } else if (const auto format = program[program.exports[i - states].value].format) {
        program[terminal->args[i]].format = format;
      }
    }
    assigner.AssignRegion(*terminal, Role::kObjective);
  }
  if (!numerical.adjoint) return;
  Adjoint& adjoint = *numerical.adjoint;
  AssignSlots(assigner, adjoint.terminal, terminal != nullptr ? 1 : 0);
  const size_t seeds = numerical.stage_cost == ValueId::kNone ? 0 : 1;
  if (adjoint.last) AssignSlots(assigner, *adjoint.last, seeds);
  AssignSlots(assigner, adjoint.inner, seeds);
  if (program.HasInitial()) AssignSlots(assigner, adjoint.initial, 0);
}

}  // namespace

bool IsDifferentiable(const Program& program, const Input& input) {
  const bool kind = input.kind == InputKind::kState || input.kind == InputKind::kParam ||
                    input.kind == InputKind::kControl;
  return kind && program[input.value].type.element == ElementType::kReal;
}

namespace {

absl::Status CheckAsked(const Program& world, const precision::Policy& policy,
                        const std::string& objective, const std::optional<AdjointSpec>& adjoint,
                        PassBudget& budget) {
  if (!objective.empty() && world.FindObjective(objective) == nullptr) {
    std::vector<std::string> names;
    for (const Objective& known : world.objectives) names.push_back(known.name);
    return FieldError("objective", absl::StrCat("world '", world.name, "' has no objective '",
                                                objective, "'; its objectives: ", NameList(names)));
  }
  if (absl::Status status = CheckSites(world, policy, budget); !status.ok()) return status;
  return adjoint ? CheckWanted(world, *adjoint) : absl::OkStatus();
}

// The world's own part of what is written.
void CountWorld(const Program& program, PassBudget& budget) {
  for (const Value& value : program.values) budget.WroteValue(value);
  budget.WroteRegion(program.initial);
  budget.WroteRegion(program.step);
  for (const Objective& objective : program.objectives) {
    budget.WroteRegion(objective.stage);
    budget.WroteRegion(objective.terminal);
  }
}

// The passes, in order.
NumericalProgram Lowered(const Program& world, const precision::Policy& policy,
                         const std::string& objective, const std::optional<AdjointSpec>& adjoint,
                         PassBudget& budget) {
  NumericalProgram numerical;
  CountWorld(world, budget);
  numerical.program = ExpandComposites(world, budget);
  numerical.policy = policy;
  ChooseObjective(numerical, objective, budget);
  std::vector<ValueId> keep;
  if (numerical.stage_cost != ValueId::kNone) keep.push_back(numerical.stage_cost);
  numerical.program = Simplify(std::move(numerical.program), keep, budget);
  Region* terminal = nullptr;
  if (!numerical.program.objectives.empty()) {
    Objective& chosen = numerical.program.objectives.front();
    if (chosen.HasTerminal()) terminal = &chosen.terminal;
  }
  BringIntoObjective(numerical.program, numerical.program.step, budget);
  if (terminal != nullptr) BringIntoObjective(numerical.program, *terminal, budget);
  if (adjoint) {
    numerical.adjoint_spec = adjoint;
    numerical.adjoint =
        Differentiate(numerical.program, numerical.stage_cost, terminal, *adjoint, budget);
  }
  AssignAll(numerical, budget);
  RemoveUnread(numerical, budget);
  MarkUsedInputs(numerical, budget);
  Renumber(numerical, budget);
  numerical.text = Print(numerical, &budget);
  numerical.fingerprint = Fingerprint(numerical.text, &budget);
  numerical.sites = SitesOf(numerical.program, &budget);
  return numerical;
}

}  // namespace

absl::StatusOr<NumericalProgram> Lower(const Program& world, const precision::Policy& policy,
                                       const std::string& objective,
                                       const std::optional<AdjointSpec>& adjoint,
                                       PassBudget* budget) {
  PassBudget own;
  PassBudget& counted = budget != nullptr ? *budget : own;
  absl::StatusOr<NumericalProgram> lowered;
  const absl::Status ended = WithinBudget([&] {
    absl::Status status = CheckAsked(world, policy, objective, adjoint, counted);
    if (status.ok()) {
      lowered = Lowered(world, policy, objective, adjoint, counted);
    } else {
      lowered = std::move(status);
    }
  });
  if (!ended.ok()) return ended;
  return lowered;
}

}  // namespace simgrad::sim
