#include "sim/program/own_vjp.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simgrad::sim {
namespace {

// A copy of a region's operations inside the region that is being written.
class RegionCopy {
 public:
  RegionCopy(AdjointWriter& writer, Role role, ValueId where)
      : w_(writer), role_(role), where_(where) {}

  void Bind(ValueId arg, ValueId value) { copied_[Index(arg)] = value; }

  // A literal, a config or the step may come from outside.
  ValueId Of(ValueId id) {
    const auto known = copied_.find(Index(id));
    return known != copied_.end() ? known->second : w_.Tape(id);
  }

  void Write(const Region& region) {
    for (const Op& op : region.ops) {
      if (!Passes(op)) w_.Push(Copied(op));
    }
  }

 private:
  // A call inside gives what its body gives.
  bool Passes(const Op& op) {
    if (op.code != OpCode::kOwnVjp) return false;
    const size_t given = op.operands.size() - op.results.size();
    for (size_t r = 0; r < op.results.size(); ++r) {
      Bind(op.results[r], Of(op.operands[given + r]));
    }
    return true;
  }

  ValueId New(ValueId id) {
    const Value value = w_.program()[id];
    const ValueId copy = w_.AddValue(value.type, value.name);
    Bind(id, copy);
    return copy;
  }

  Op Copied(const Op& op) {
    Op copy = op;
    const bool decides = op.role == Role::kTermination || op.role == Role::kEvent;
    if (!decides) copy.role = role_;
    for (ValueId& id : copy.operands) id = Of(id);
    for (Region& region : copy.regions) region = Copied(region);
    for (ValueId& id : copy.results) id = New(id);
    const bool is_real = copy.results.size() == 1 && w_.program().IsReal(copy.results[0]);
    if (is_real && op.regions.empty() && op.code != OpCode::kLiteral) {
      copy.attributes.where = where_;
    }
    return copy;
  }

  Region Copied(const Region& region) {
    Region copy;
    for (ValueId id : region.args) copy.args.push_back(New(id));
    for (const Op& op : region.ops) {
      if (Passes(op)) continue;
      copy.ops.push_back(Copied(op));
      w_.budget().WroteOp(copy.ops.back());
    }
    for (ValueId id : region.yields) copy.yields.push_back(Of(id));
    return copy;
  }

  AdjointWriter& w_;
  Role role_;
  ValueId where_;  // a bool scalar, or none: everywhere
  std::unordered_map<size_t, ValueId> copied_;
};

class OwnVjp {
 public:
  OwnVjp(AdjointWriter& writer, const Op& op)
      : w_(writer), op_(op), arguments_(op.operands.size() - op.results.size()) {
    role_ = op.role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  }

  void Write() {
    std::vector<Slot> slots;
    for (ValueId id : op_.results) slots.push_back(w_.SlotOf(id));
    Mark(slots);
    if (mask_.presence == Presence::kNever) return;
    w_.SetContext({role_, op_.label, {}});
    WriteMask(slots);
    RegionCopy copy(w_, role_, mask_.value);
    BindArgs(copy, slots);
    copy.Write(op_.regions[0]);
    Deliver(copy);
    w_.SetContext({});
  }

 private:
  // Always where a cotangent always is, else where any is.
  void Mark(const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) {
      if (slot.presence() == Presence::kAlways) mask_ = Mask::Always();
      if (slot.presence() == Presence::kMasked && mask_.presence == Presence::kNever) {
        mask_.presence = Presence::kMasked;
      }
    }
  }

  ValueId EmitMask(Op op, const Shape& shape) {
    const auto before = w_.context();
    w_.SetContext({Role::kAdjoint, op_.label, {}});
    const ValueId mask = w_.Emit(std::move(op), {ElementType::kBool, shape});
    w_.SetContext(before);
    return mask;
  }

  void WriteMask(const std::vector<Slot>& slots) {
    if (mask_.presence != Presence::kMasked) return;
    for (const Slot& slot : slots) {
      if (slot.presence() != Presence::kMasked) continue;
      ValueId any = slot.mask.value;
      const size_t axes = w_.program()[any].type.shape.size();
      if (axes > 0) {
        Op op{.code = OpCode::kAny, .operands = {any}};
        for (size_t k = 0; k < axes; ++k) op.attributes.axes.push_back(static_cast<int64_t>(k));
        any = EmitMask(std::move(op), {});
      }
      mask_.value = mask_.value == ValueId::kNone
                        ? any
                        : EmitMask({.code = OpCode::kOr, .operands = {mask_.value, any}}, {});
    }
  }

  // The cotangent, with +0 where there is none.
  ValueId Filled(const Slot& slot, const Type& type) {
    if (slot.presence() == Presence::kAlways) return slot.cotangent;
    const ValueId zero = w_.Number(0.0, type);
    if (slot.presence() == Presence::kNever) return zero;
    return w_.Emit(OpCode::kSelect, {slot.mask.value, slot.cotangent, zero}, type);
  }

  void BindArgs(RegionCopy& copy, const std::vector<Slot>& slots) {
    const Region& region = op_.regions[0];
    size_t arg = 0;
    for (size_t k = 0; k < arguments_; ++k) copy.Bind(region.args[arg++], w_.Tape(op_.operands[k]));
    for (ValueId id : op_.results) copy.Bind(region.args[arg++], w_.Tape(id));
    for (size_t r = 0; r < slots.size(); ++r) {
      if (!w_.program().IsReal(op_.results[r])) continue;
      const Type type = w_.program()[op_.results[r]].type;
      copy.Bind(region.args[arg++], Filled(slots[r], type));
    }
  }

  // The last operand first, as rules do.
  void Deliver(RegionCopy& copy) {
    const Region& region = op_.regions[0];
    size_t yield = region.yields.size();
    for (size_t k = arguments_; k-- > 0;) {
      const ValueId to = op_.operands[k];
      if (!w_.program().IsReal(to)) continue;
      --yield;
      if (!w_.IsActive(to)) continue;
      Mask mask = mask_;
      const Shape shape = w_.program()[to].type.shape;
      if (mask.presence == Presence::kMasked && !shape.empty()) {
        Op wide{.code = OpCode::kBroadcast, .operands = {mask.value}};
        wide.attributes.shape = shape;
        mask = Mask::At(EmitMask(std::move(wide), shape));
      }
      w_.Contribute(to, {copy.Of(region.yields[yield]), mask});
    }
  }

  AdjointWriter& w_;
  const Op& op_;
  size_t arguments_;
  Role role_;
  Mask mask_;
};

class Remover {
 public:
  explicit Remover(PassBudget& budget) : budget_(budget) {}

  // Nothing to follow afterwards where there is none.
  void Drop(Region& region) {
    for (Op& op : region.ops) {
      budget_.Visit();
      for (Region& nested : op.regions) Drop(nested);
      if (op.code != OpCode::kOwnVjp) continue;
      const size_t given = op.operands.size() - op.results.size();
      for (size_t r = 0; r < op.results.size(); ++r) {
        ValueId by_body = op.operands[given + r];
        Follow(by_body);
        same_[Index(op.results[r])] = by_body;
      }
    }
    std::erase_if(region.ops, [](const Op& op) { return op.code == OpCode::kOwnVjp; });
  }

  bool IsIdle() const { return same_.empty(); }

  void Follow(ValueId& id) const {
    if (id == ValueId::kNone) return;
    const auto known = same_.find(Index(id));
    if (known != same_.end()) id = known->second;
  }

  void Follow(Region& region) const {
    for (Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
      for (ValueId& id : op.operands) Follow(id);
      Follow(op.attributes.primal);
      Follow(op.attributes.where);
      for (Region& nested : op.regions) Follow(nested);
    }
    for (ValueId& id : region.yields) Follow(id);
  }

 private:
  PassBudget& budget_;
  std::unordered_map<size_t, ValueId> same_;
};

}  // namespace

void WriteOwnVjp(AdjointWriter& writer, const Op& op) { OwnVjp(writer, op).Write(); }

NumericalProgram RemoveOwnVjps(NumericalProgram numerical, PassBudget& budget) {
  Remover remover(budget);
  const std::vector<Region*> regions = RegionsOf(numerical);
  for (Region* region : regions) remover.Drop(*region);
  if (remover.IsIdle()) return numerical;
  for (Region* region : regions) remover.Follow(*region);
  for (Export& exported : numerical.program.exports) remover.Follow(exported.value);
  remover.Follow(numerical.stage_cost);
  return numerical;
}

}  // namespace simgrad::sim
