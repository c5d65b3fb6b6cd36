#include "sim/program/objective.h"

#include <algorithm>
#include <span>
#include <unordered_map>
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

// Rewrites a region of the top level with all that lie in it.
class Bringer {
 public:
  Bringer(Program& program, PassBudget& budget)
      : program_(program),
        budget_(budget),
        keeps_(program.values.size(), false),
        home_(program.values.size(), 0) {
    for (const Input& input : program.inputs) {
      if (input.kind != InputKind::kState) keeps_[Index(input.value)] = true;
    }
  }

  Region Brought(Region region) && {
    Keep(region);
    return Rewritten(std::move(region), nullptr);
  }

 private:
  struct Frame {
    std::vector<Op> ops;
    std::unordered_map<size_t, ValueId> casts;  // by the value that is cast
  };

  // Literals, and what operations of the objective make: their results, and arguments of their regions.
  void Keep(const Region& region) {
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.results.size()));
      const bool is_own = op.role == Role::kObjective;
      if (is_own || op.code == OpCode::kLiteral) Keep(op.results);
      for (const Region& nested : op.regions) {
        if (is_own) Keep(nested.args);
        Keep(nested);
      }
    }
  }
  void Keep(const std::vector<ValueId>& values) {
    for (ValueId id : values) {
      if (id != ValueId::kNone) keeps_[Index(id)] = true;
    }
  }

  // In the innermost frame.
  void Define(const std::vector<ValueId>& values) {
    for (ValueId id : values) {
      if (id != ValueId::kNone) home_[Index(id)] = frames_.size() - 1;
    }
  }

  // `reads_yields`: the label of the objective's operation that does; null: none.
  Region Rewritten(Region region, const std::string* reads_yields) {
    frames_.emplace_back();
    Define(region.args);
    for (Op& op : region.ops) {
      Define(op.results);
      const bool reads = op.role == Role::kObjective && op.code != OpCode::kCast;
      if (reads) BringAll(op.operands, op.label);
      // The rule of a vjp belongs to the adjoint. What a loop tests is read by role termination.
      for (size_t k = 0; k < op.regions.size() && op.code != OpCode::kOwnVjp; ++k) {
        const bool is_test = op.code == OpCode::kWhile && k == 0;
        // A step behind a halt reads states as one without does.
        if (op.attributes.kept_from > 0 && !is_test) step_ = frames_.size();
        op.regions[k] =
            Rewritten(std::move(op.regions[k]), reads && !is_test ? &op.label : nullptr);
      }
      frames_.back().ops.push_back(std::move(op));
    }
    if (reads_yields != nullptr) BringAll(region.yields, *reads_yields);
    region.ops = std::move(frames_.back().ops);
    frames_.pop_back();
    return region;
  }

  void BringAll(std::vector<ValueId>& values, const std::string& label) {
    for (ValueId& id : values) {
      budget_.Visit();
      if (program_.IsReal(id) && !keeps_[Index(id)]) id = CastOf(id, label);
    }
  }

  // Once, where the value is at home; of a state in the step.
  ValueId CastOf(ValueId value, const std::string& label) {
    Frame& home = frames_[std::max(home_[Index(value)], step_)];
    ValueId& cast = home.casts.try_emplace(Index(value), ValueId::kNone).first->second;
    if (cast == ValueId::kNone) {
      cast = AppendCast(program_, home.ops, value, Role::kObjective, label, budget_);
      keeps_.push_back(true);
      home_.push_back(0);
    }
    return cast;
  }

  Program& program_;
  PassBudget& budget_;
  std::vector<bool> keeps_;   // by value: not to be cast
  std::vector<size_t> home_;  // by value: the place in frames_ of the region that defines it
  std::vector<Frame> frames_;
  size_t step_ = 0;  // the place there of the step itself
};

// The branch that a halt made of the step, which keeps formats; null: there is none.
Op* HaltedStep(Region& step) {
  for (Op& op : step.ops) {
    if (op.attributes.kept_from > 0) return &op;
  }
  return nullptr;
}

// One more value that keeps its format leaves the branch: 0 where it is not taken.
ValueId Leave(Program& program, Region& step, ValueId value, PassBudget& budget) {
  const auto added = [&] {
    budget.WroteValue(program[value]);
    return program.AddValue(program[value].type, program[value].name);
  };
  Op zero{.code = OpCode::kLiteral, .role = Role::kState, .results = {added()}};
  zero.attributes.literal = {0.0};
  Op& branch = *HaltedStep(step);
  const auto place = branch.attributes.carried++;
  branch.operands.insert(branch.operands.begin() + place, zero.results[0]);
  for (Region& region : branch.regions) region.args.insert(region.args.begin() + place, added());
  branch.regions[1].yields.insert(branch.regions[1].yields.begin() + place, value);
  const ValueId result = added();
  branch.results.insert(branch.results.begin() + place, result);
  budget.WroteOp(zero);
  step.ops.insert(step.ops.begin(), std::move(zero));
  return result;
}

// Brings exports that their region does not make into role dynamics: nothing else brings them into a
// role.
void CastExports(Program& program, Region& region, std::span<ValueId> exported,
                 PassBudget& budget) {
  const std::vector<bool> computed = Computed(program, region, budget);
  for (ValueId& id : exported) {
    if (!program.IsReal(id) || computed[Index(id)]) continue;
    id = AppendCast(program, region.ops, id, Role::kDynamics, "", budget);
  }
}

}  // namespace

NumericalProgram ChooseObjective(Program world, const std::string& name, PassBudget& budget) {
  NumericalProgram numerical;
  numerical.program = std::move(world);
  Program& program = numerical.program;
  std::erase_if(program.objectives, [&](const Objective& other) { return other.name != name; });
  Op* const halted = HaltedStep(program.step);
  if (halted != nullptr) {
    // The last one first (halts.cc).
    Region& taken = halted->regions[1];
    const auto count = static_cast<int64_t>(program.exports.size());
    std::vector<ValueId> exported(taken.yields.rbegin(), taken.yields.rbegin() + count);
    CastExports(program, taken, exported, budget);
    std::copy(exported.begin(), exported.end(), taken.yields.rbegin());
  } else {
    std::vector<ValueId> exported;
    for (const Export& each : program.exports) exported.push_back(each.value);
    CastExports(program, program.step, exported, budget);
    for (size_t k = 0; k < exported.size(); ++k) program.exports[k].value = exported[k];
  }
  if (program.objectives.empty()) return numerical;
  numerical.objective = name;
  Region stage = std::exchange(program.objectives.front().stage, {});
  if (stage.yields.empty()) return numerical;
  std::vector<Op>& ops = halted != nullptr ? halted->regions[1].ops : program.step.ops;
  for (Op& op : stage.ops) ops.push_back(std::move(op));
  const ValueId cost = AppendCast(program, ops, stage.yields[0], Role::kObjective, "", budget);
  numerical.stage_cost = halted != nullptr ? Leave(program, program.step, cost, budget) : cost;
  return numerical;
}

NumericalProgram BringIntoObjective(NumericalProgram numerical, PassBudget& budget) {
  Program& program = numerical.program;
  program.step = Bringer(program, budget).Brought(std::move(program.step));
  for (Objective& objective : program.objectives) {
    objective.terminal = Bringer(program, budget).Brought(std::move(objective.terminal));
  }
  return numerical;
}

}  // namespace simgrad::sim
