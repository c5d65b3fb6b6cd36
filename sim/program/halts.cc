#include "sim/program/halts.h"

#include <algorithm>
#include <utility>

#include "sim/op/expansion.h"
#include "sim/program/simplify.h"

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
      if (objective.HasStage() && has_error_) {
        objective.stage = Guarded(sound_, std::move(objective.stage));
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
  Region Guarded(ValueId choice, Region cost) {
    Region region;
    region.args = std::exchange(cost.args, {});
    Region none;
    none.yields = {Number(none, 0, program_[cost.yields[0]].type)};
    region.yields = Branch(region, choice, std::move(cost), std::move(none), Role::kObjective);
    return region;
  }

  // The branch of an instance that runs gives its states, and values that keep their formats: whether
  // it failed, and the exports, the last one first, as its reverse takes cotangents from the last
  // result on.
  void WriteStep() {
    Region body = std::exchange(program_.step, {});
    Region& step = program_.step;
    const ValueId runs = Do(step, OpCode::kEq, {state_, Number(step, 0, kPlace)}, kTruth);
    const size_t states = body.yields.size();
    const ValueId failed = WriteHalts(body);
    if (has_error_) sound_ = Do(body, OpCode::kNot, {failed}, kTruth);
    Region still;
    for (size_t k = 0; k < states; ++k) still.yields.push_back(program_.inputs[k].value);
    still.yields.push_back(state_);
    body.yields.push_back(halted_);
    if (has_error_) body.yields.push_back(failed);
    for (size_t k = program_.exports.size(); k-- > 0;) {
      budget_.Visit();
      body.yields.push_back(program_.exports[k].value);
    }
    std::vector<ValueId> given =
        Branch(step, runs, std::move(body), std::move(still), Role::kState);
    step.ops.back().attributes.kept_from = static_cast<int32_t>(states) + 1;
    for (Export& exported : program_.exports) {
      budget_.Visit();
      exported.value = given.back();
      given.pop_back();
    }
    if (has_error_) {
      const ValueId has_failed = given.back();
      given.pop_back();
      for (size_t k = 0; k < states; ++k) {
        given[k] = Either(step, has_failed, program_.inputs[k].value, given[k]);
      }
    }
    step.yields = std::move(given);
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
    Region guarded = Guarded(counts, std::move(terminal));
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
  ValueId sound_ = ValueId::kNone;   // in the branch: whether its cost counts
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
  // So that a value and its copies have one cotangent in the branch.
  program = RemoveCopies(ExpandComposites(std::move(program), budget), budget);
  return Expansion(std::move(program), std::move(spec), budget).Run();
}

}  // namespace simgrad::sim
