#include "sim/program/simplify.h"

#include <algorithm>
#include <vector>

namespace simgrad::sim {
namespace {

bool Decides(const Op& op, PassBudget& budget) {
  budget.Visit();
  if (op.code == OpCode::kEvent || op.code == OpCode::kWhile || op.code == OpCode::kAccumulate) {
    return true;
  }
  return std::any_of(op.regions.begin(), op.regions.end(), [&](const Region& region) {
    return std::any_of(region.ops.begin(), region.ops.end(),
                       [&](const Op& inside) { return Decides(inside, budget); });
  });
}

class CopyRemover {
 public:
  CopyRemover(Program& program, PassBudget& budget)
      : program_(program), budget_(budget), same_(program.values.size()) {
    for (size_t i = 0; i < same_.size(); ++i) same_[i] = static_cast<ValueId>(i);
  }

  void Visit(Region& region) {
    std::vector<Op> kept;
    for (Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
      for (ValueId& id : op.operands) Follow(id);
      for (Region& nested : op.regions) Visit(nested);
      if (IsCopy(program_, op)) {
        same_[Index(op.results[0])] = op.operands[0];
        continue;
      }
      kept.push_back(std::move(op));
    }
    region.ops = std::move(kept);
    for (ValueId& id : region.yields) Follow(id);
  }

  void Follow(ValueId& id) const {
    if (id != ValueId::kNone) id = same_[Index(id)];
  }

 private:
  Program& program_;
  PassBudget& budget_;
  std::vector<ValueId> same_;
};

}  // namespace

bool IsCopy(const Program& program, const Op& op) {
  return (op.code == OpCode::kBroadcast || op.code == OpCode::kReshape) &&
         program[op.operands[0]].type == program[op.results[0]].type;
}

void MarkUses(const Region& region, std::vector<bool>& live, PassBudget* budget) {
  const auto mark = [&](ValueId id) {
    if (id != ValueId::kNone) live[Index(id)] = true;
  };
  for (const Op& op : region.ops) {
    if (budget != nullptr) budget->Visit(1 + static_cast<int64_t>(op.operands.size()));
    for (ValueId id : op.operands) mark(id);
    mark(op.attributes.primal);
    mark(op.attributes.where);
    for (const Region& nested : op.regions) MarkUses(nested, live, budget);
  }
  for (ValueId id : region.yields) mark(id);
}

void RemoveDeadCode(Region& region, std::vector<bool>& live, PassBudget& budget) {
  for (ValueId id : region.yields) {
    if (id != ValueId::kNone) live[Index(id)] = true;
  }
  std::vector<Op> kept;
  kept.reserve(region.ops.size());
  for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) {
    budget.Visit(1 + static_cast<int64_t>(op->operands.size() + op->results.size()));
    const bool used = std::any_of(op->results.begin(), op->results.end(), [&](ValueId id) {
      return id != ValueId::kNone && live[Index(id)];
    });
    if (!used && !Decides(*op, budget)) continue;
    for (ValueId id : op->operands) {
      if (id != ValueId::kNone) live[Index(id)] = true;
    }
    for (ValueId id : {op->attributes.where, op->attributes.primal}) {
      if (id != ValueId::kNone) live[Index(id)] = true;
    }
    for (Region& nested : op->regions) {
      RemoveDeadCode(nested, live, budget);
      MarkUses(nested, live, &budget);
    }
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  // What is kept may stay for long.
  if (kept.size() < kept.capacity() / 8 * 7) kept.shrink_to_fit();
  region.ops = std::move(kept);
}

Program Simplify(Program program, const std::vector<ValueId>& keep, PassBudget& budget) {
  CopyRemover copies(program, budget);
  copies.Visit(program.initial);
  copies.Visit(program.step);
  for (Export& exported : program.exports) copies.Follow(exported.value);
  for (Objective& objective : program.objectives) {
    copies.Visit(objective.stage);
    copies.Visit(objective.terminal);
  }
  std::vector<bool> live(program.values.size(), false);
  for (ValueId id : keep) live[Index(id)] = true;
  for (const Export& exported : program.exports) live[Index(exported.value)] = true;
  for (Objective& objective : program.objectives) {
    RemoveDeadCode(objective.stage, live, budget);
    RemoveDeadCode(objective.terminal, live, budget);
  }
  RemoveDeadCode(program.step, live, budget);
  RemoveDeadCode(program.initial, live, budget);
  return program;
}

}  // namespace simgrad::sim
