#include "sim/program/simplify.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

bool Decides(const Op& op, PassBudget& budget) {
  budget.Visit();
  if (op.code == OpCode::kOwnVjp) return false;
  const bool loop = op.code == OpCode::kWhile && !IsBranch(op);
  if (IsTest(op) || loop || op.code == OpCode::kAccumulate) {
    return true;
  }
  return std::any_of(op.regions.begin(), op.regions.end(), [&](const Region& region) {
    return std::any_of(region.ops.begin(), region.ops.end(),
                       [&](const Op& inside) { return Decides(inside, budget); });
  });
}

class CopyRemover {
 public:
  CopyRemover(const Program& program, PassBudget& budget)
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
  const Program& program_;
  PassBudget& budget_;
  std::vector<ValueId> same_;
};

// Values that something uses.
class Live {
 public:
  Live(const Program& program, const std::vector<ValueId>& keep, PassBudget& budget)
      : budget_(budget), is_live_(program.values.size(), false) {
    MarkAll(keep);
    for (const Export& exported : program.exports) Mark(exported.value);
  }

  // Drops the dead operations of `region` and of the regions nested in it; what the others use is
  // live from then on.
  void Prune(Region& region) {
    MarkAll(region.yields);
    std::vector<Op> kept;
    kept.reserve(region.ops.size());
    for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) {
      budget_.Visit(1 + static_cast<int64_t>(op->operands.size() + op->results.size()));
      const bool used = std::any_of(op->results.begin(), op->results.end(), [&](ValueId id) {
        return id != ValueId::kNone && is_live_[Index(id)];
      });
      if (!used && !Decides(*op, budget_)) continue;
      MarkAll(op->operands);
      for (ValueId id : {op->attributes.where, op->attributes.primal}) Mark(id);
      for (Region& nested : op->regions) {
        Prune(nested);
        MarkUses(nested, is_live_, &budget_);
      }
      kept.push_back(std::move(*op));
    }
    std::reverse(kept.begin(), kept.end());
    // The operations that stay may be cached for long.
    if (kept.size() < kept.capacity() / 8 * 7) kept.shrink_to_fit();
    region.ops = std::move(kept);
  }

 private:
  void Mark(ValueId id) {
    if (id != ValueId::kNone) is_live_[Index(id)] = true;
  }
  void MarkAll(const std::vector<ValueId>& ids) {
    for (ValueId id : ids) Mark(id);
  }

  PassBudget& budget_;
  std::vector<bool> is_live_;
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

Program RemoveCopies(Program program, PassBudget& budget) {
  CopyRemover copies(program, budget);
  copies.Visit(program.initial);
  copies.Visit(program.step);
  for (Export& exported : program.exports) copies.Follow(exported.value);
  for (Objective& objective : program.objectives) {
    copies.Visit(objective.stage);
    copies.Visit(objective.terminal);
  }
  return program;
}

Program Simplify(Program program, const std::vector<ValueId>& keep, PassBudget& budget) {
  program = RemoveCopies(std::move(program), budget);
  Live live(program, keep, budget);
  for (Objective& objective : program.objectives) {
    live.Prune(objective.stage);
    live.Prune(objective.terminal);
  }
  live.Prune(program.step);
  live.Prune(program.initial);
  return program;
}

NumericalProgram RemoveUnread(NumericalProgram numerical, PassBudget& budget) {
  Live live(numerical.program, {numerical.stage_cost}, budget);
  const std::vector<Region*> regions = RegionsOf(numerical);
  for (auto region = regions.rbegin(); region != regions.rend(); ++region) live.Prune(**region);
  return numerical;
}

}  // namespace simgrad::sim
