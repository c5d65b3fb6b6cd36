#include "sim/program/simplify.h"

#include <algorithm>
#include <vector>

namespace simgrad::sim {
namespace {

bool Decides(const Op& op) {
  if (op.code == OpCode::kEvent || op.code == OpCode::kWhile || op.code == OpCode::kAccumulate) {
    return true;
  }
  return std::any_of(op.regions.begin(), op.regions.end(), [](const Region& region) {
    return std::any_of(region.ops.begin(), region.ops.end(), Decides);
  });
}

class CopyRemover {
 public:
  explicit CopyRemover(Program& program) : program_(program), same_(program.values.size()) {
    for (size_t i = 0; i < same_.size(); ++i) same_[i] = static_cast<ValueId>(i);
  }

  void Visit(Region& region) {
    std::vector<Op> kept;
    for (Op& op : region.ops) {
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
  std::vector<ValueId> same_;
};

}  // namespace

bool IsCopy(const Program& program, const Op& op) {
  return (op.code == OpCode::kBroadcast || op.code == OpCode::kReshape) &&
         program[op.operands[0]].type == program[op.results[0]].type;
}

void MarkUses(const Region& region, std::vector<bool>& live) {
  const auto mark = [&](ValueId id) {
    if (id != ValueId::kNone) live[Index(id)] = true;
  };
  for (const Op& op : region.ops) {
    for (ValueId id : op.operands) mark(id);
    mark(op.attributes.primal);
    mark(op.attributes.where);
    for (const Region& nested : op.regions) MarkUses(nested, live);
  }
  for (ValueId id : region.yields) mark(id);
}

void RemoveDeadCode(Region& region, const Program& program, std::vector<bool>& live) {
  for (ValueId id : region.yields) {
    if (id != ValueId::kNone) live[Index(id)] = true;
  }
  std::vector<Op> kept;
  for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) {
    const bool used = std::any_of(op->results.begin(), op->results.end(), [&](ValueId id) {
      return id != ValueId::kNone && live[Index(id)];
    });
    if (!used && !Decides(*op)) continue;
    for (ValueId id : op->operands) {
      if (id != ValueId::kNone) live[Index(id)] = true;
    }
    for (ValueId id : {op->attributes.where, op->attributes.primal}) {
      if (id != ValueId::kNone) live[Index(id)] = true;
    }
    for (Region& nested : op->regions) {
      RemoveDeadCode(nested, program, live);
      MarkUses(nested, live);
    }
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  region.ops = std::move(kept);
}

Program Simplify(Program program, const std::vector<ValueId>& keep) {
  CopyRemover copies(program);
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
    RemoveDeadCode(objective.stage, program, live);
    RemoveDeadCode(objective.terminal, program, live);
  }
  RemoveDeadCode(program.step, program, live);
  RemoveDeadCode(program.initial, program, live);
  return program;
}

}  // namespace simgrad::sim
