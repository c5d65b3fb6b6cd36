#include "sim/program/halts.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "sim/program/rename.h"

namespace simgrad::sim {
namespace {

const Type kTruth = {ElementType::kBool, {}};
const Type kPlace = {ElementType::kI64, {}};

bool Halts(const Program& program, PassBudget& budget) {
  return std::any_of(program.step.ops.begin(), program.step.ops.end(), [&](const Op& op) {
    budget.Visit();
    return op.code == OpCode::kHalt;
  });
}

// State: 0 while the instance runs, else 1 + 2 (64 step + halt), and one more with an error.
class Expansion {
 public:
  Expansion(Program program, std::optional<AdjointSpec> spec, PassBudget& budget)
      : program_(std::move(program)), spec_(std::move(spec)), budget_(budget) {
    for (const Op& op : program_.step.ops) {
      has_error_ = has_error_ || (op.code == OpCode::kHalt && op.attributes.error);
    }
  }

  ExpandedHalts Run() {
    AddInputs();
    if (program_.HasInitial()) program_.initial.yields.push_back(state_);
    WriteStep();
    for (Objective& objective : program_.objectives) {
      if (objective.HasStage()) {
        objective.stage = Guarded(runs_, std::move(objective.stage), Role::kObjective);
      }
      if (objective.HasTerminal()) WriteTerminal(objective);
    }
    return {std::move(program_), std::move(spec_)};
  }

 private:
  void AddInputs() {
    const size_t states = program_.InputsOf(InputKind::kState).size();
    state_ = NewValue(kPlace, kHaltedState);
    program_.inputs.insert(
        program_.inputs.begin() + static_cast<int64_t>(states),
        {.kind = InputKind::kState, .name = kHaltedState, .value = state_, .default_value = 0.0});
    if (spec_) {
      spec_->final_state.resize(states);
      spec_->final_state.push_back(false);
      spec_->trajectory_state.resize(states);
      spec_->trajectory_state.push_back(false);
      spec_->wanted.insert(spec_->wanted.begin() + static_cast<int64_t>(states), false);
    }
    const std::vector<int32_t> steps = program_.InputsOf(InputKind::kStep);
    if (!steps.empty()) {
      step_ = program_.inputs[static_cast<size_t>(steps[0])].value;
      return;
    }
    step_ = NewValue({ElementType::kI32, {}}, "step");
    program_.inputs.push_back({.kind = InputKind::kStep, .name = "step", .value = step_});
  }

  ValueId NewValue(const Type& type, const std::string& name = "") {
    const ValueId id = program_.AddValue(type, name);
    budget_.WroteValue(program_[id]);
    return id;
  }

  ValueId Do(Region& region, OpCode code, std::vector<ValueId> operands, const Type& type,
             Role role = Role::kState) {
    const ValueId result = NewValue(type);
    Op op{.code = code, .role = role, .operands = std::move(operands), .results = {result}};
    budget_.WroteOp(op);
    region.ops.push_back(std::move(op));
    return result;
  }

  ValueId Number(Region& region, int64_t number, const Type& type) {
    const ValueId result = Do(region, OpCode::kLiteral, {}, type);
    region.ops.back().attributes.literal = {static_cast<double>(number)};
    return result;
  }

  // `taken` where `choice` holds, else `other`; gives the results of the cond.
  std::vector<ValueId> Branch(Region& region, ValueId choice, Region taken, Region other,
                              Role role) {
    Op cond{.code = OpCode::kCond, .role = role, .operands = {choice}};
    std::vector<ValueId> results;
    for (ValueId id : taken.yields) {
      results.push_back(NewValue(program_[id].type, program_[id].name));
    }
    cond.results = results;
    cond.regions = {std::move(other), std::move(taken)};
    budget_.WroteOp(cond);
    region.ops.push_back(std::move(cond));
    return results;
  }

  // A cost that is 0 where `choice` does not hold.
  Region Guarded(ValueId choice, Region cost, Role role) {
    Region region;
    region.args = std::exchange(cost.args, {});
    Region none;
    none.yields = {Number(none, 0, program_[cost.yields[0]].type)};
    Rename(exported_, cost, budget_);
    region.yields = Branch(region, choice, std::move(cost), std::move(none), role);
    return region;
  }

  void WriteStep() {
    Region body = std::exchange(program_.step, {});
    Region& step = program_.step;
    const ValueId runs = Do(step, OpCode::kEq, {state_, Number(step, 0, kPlace)}, kTruth);
    const size_t states = body.yields.size();
    const ValueId failed = WriteHalts(body);
    Region still;
    for (size_t k = 0; k < states; ++k) {
      const ValueId before = program_.inputs[k].value;
      if (has_error_) {
        body.yields[k] = Either(body, failed, before, body.yields[k]);
      }
      still.yields.push_back(before);
    }
    still.yields.push_back(state_);
    body.yields.push_back(halted_);
    for (const Export& exported : program_.exports) {
      budget_.Visit();
      body.yields.push_back(exported.value);
      still.yields.push_back(Number(still, 0, program_[exported.value].type));
    }
    if (has_error_) {
      body.yields.push_back(failed);
      still.yields.push_back(Number(still, 0, kTruth));
    }
    const std::vector<ValueId> given =
        Branch(step, runs, std::move(body), std::move(still), Role::kState);
    step.yields.assign(given.begin(), given.begin() + static_cast<int64_t>(states) + 1);
    std::unordered_set<size_t> inputs;
    for (const Input& input : program_.inputs) {
      budget_.Visit();
      inputs.insert(Index(input.value));
    }
    for (size_t k = 0; k < program_.exports.size(); ++k) {
      budget_.Visit();
      ValueId& value = program_.exports[k].value;
      // Costs read inputs where they stand.
      if (inputs.count(Index(value)) == 0) exported_[value] = given[states + 1 + k];
      value = given[states + 1 + k];
    }
    runs_ = runs;
    if (has_error_) {
      const ValueId sound = Do(step, OpCode::kNot, {given.back()}, kTruth);
      runs_ = Do(step, OpCode::kAnd, {runs, sound}, kTruth);
    }
  }

  // a where the bool scalar holds, else b.
  ValueId Either(Region& region, ValueId condition, ValueId a, ValueId b) {
    const Type type = program_[a].type;
    if (!type.shape.empty()) {
      condition = Do(region, OpCode::kBroadcast, {condition}, {ElementType::kBool, type.shape});
      region.ops.back().attributes.shape = type.shape;
    }
    return Do(region, OpCode::kSelect, {condition, a, b}, type);
  }

  // Takes the halts out of a step, and writes what its last state becomes. Returns whether the halt
  // that counts is an error.
  ValueId WriteHalts(Region& body) {
    std::vector<Op> halts;
    for (Op& op : body.ops) {
      budget_.Visit();
      if (op.code == OpCode::kHalt) halts.push_back(op);
    }
    std::erase_if(body.ops, [](const Op& op) { return op.code == OpCode::kHalt; });
    const ValueId wide = Do(body, OpCode::kConvert, {step_}, kPlace);
    const ValueId before =
        Do(body, OpCode::kMul, {wide, Number(body, 2 * kMostHalts, kPlace)}, kPlace);
    halted_ = Number(body, 0, kPlace);
    ValueId failed = has_error_ ? Number(body, 0, kTruth) : ValueId::kNone;
    for (size_t k = halts.size(); k-- > 0;) {
      const bool error = halts[k].attributes.error;
      const int64_t own = 1 + 2 * static_cast<int64_t>(k) + (error ? 1 : 0);
      const ValueId place = Do(body, OpCode::kAdd, {before, Number(body, own, kPlace)}, kPlace);
      const ValueId holds = halts[k].operands[0];
      halted_ = Do(body, OpCode::kSelect, {holds, place, halted_}, kPlace);
      if (!has_error_) continue;
      failed =
          Do(body, OpCode::kSelect, {holds, Number(body, error ? 1 : 0, kTruth), failed}, kTruth);
    }
    return failed;
  }

  // The terminal cost of an instance that failed does not count.
  void WriteTerminal(Objective& objective) {
    Region terminal = std::move(objective.terminal);
    const size_t states = program_.InputsOf(InputKind::kState).size();
    const ValueId arg = NewValue(kPlace, kHaltedState);
    terminal.args.insert(terminal.args.begin() + static_cast<int64_t>(states) - 1, arg);
    if (!has_error_) {
      objective.terminal = std::move(terminal);
      return;
    }
    // Errors are even, and 0 is none.
    Region region;
    const ValueId rest = Do(region, OpCode::kMod, {arg, Number(region, 2, kPlace)}, kPlace);
    const ValueId odd = Do(region, OpCode::kNe, {rest, Number(region, 0, kPlace)}, kTruth);
    const ValueId runs = Do(region, OpCode::kEq, {arg, Number(region, 0, kPlace)}, kTruth);
    const ValueId counts = Do(region, OpCode::kOr, {odd, runs}, kTruth);
    Region guarded = Guarded(counts, std::move(terminal), Role::kObjective);
    guarded.ops.insert(guarded.ops.begin(), region.ops.begin(), region.ops.end());
    objective.terminal = std::move(guarded);
  }

  Program program_;
  std::optional<AdjointSpec> spec_;
  PassBudget& budget_;
  bool has_error_ = false;
  ValueId state_ = ValueId::kNone;
  ValueId step_ = ValueId::kNone;
  ValueId halted_ = ValueId::kNone;  // the state after a step that runs
  ValueId runs_ = ValueId::kNone;    // whether the cost of a step counts
  Renaming exported_;
};

}  // namespace

std::optional<Halt> HaltOf(int64_t state) {
  if (state <= 0) return std::nullopt;
  const int64_t place = (state - 1) / 2;
  return Halt{place / kMostHalts, static_cast<int32_t>(place % kMostHalts), state % 2 == 0};
}

std::vector<std::string> HaltNames(const Program& program, PassBudget* budget) {
  std::vector<std::string> names;
  for (const Op& op : program.step.ops) {
    if (budget != nullptr) budget->Visit();
    if (op.code == OpCode::kHalt) names.push_back(op.attributes.site);
  }
  return names;
}

ExpandedHalts ExpandHalts(Program program, std::optional<AdjointSpec> spec, PassBudget& budget) {
  if (!Halts(program, budget)) return {std::move(program), std::move(spec)};
  return Expansion(std::move(program), std::move(spec), budget).Run();
}

}  // namespace simgrad::sim
