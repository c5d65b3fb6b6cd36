// Storage of values while a plan is compiled: which slots get a place, which need their own.
#include <algorithm>

#include "sim/backend/cpu/compiler.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {

int32_t Compiler::NewSlot(Carrier carrier, Format format, int64_t count, bool uniform,
                          bool invariant) {
  plan_->slots.push_back({carrier, format, count, uniform, invariant, -1});
  return static_cast<int32_t>(plan_->slots.size()) - 1;
}

int32_t Compiler::SlotLike(int32_t slot, bool uniform, bool invariant) {
  const Slot like = SlotAt(slot);
  return NewSlot(like.carrier, like.format, like.count, uniform, invariant);
}

void Compiler::PlaceForever(int32_t slot) {
  Slot& placed = SlotAt(slot);
  if (placed.uniform) {
    placed.offset = plan_->uniform_bytes;
    plan_->uniform_bytes += placed.bytes_per_lane();
  } else {
    // Never a place that was given back: its former owner writes to it again in every step.
    placed.offset = pool_.TakeFresh(placed.bytes_per_lane());
  }
}

void Compiler::PlaceTemporary(int32_t slot) {
  if (SlotAt(slot).uniform) return PlaceForever(slot);
  SlotAt(slot).offset = pool_.Take(SlotAt(slot).bytes_per_lane());
  KeepUntilClosed(slot);
}

int32_t Compiler::Scratch(Carrier carrier, Format format, int64_t count, bool uniform,
                          bool invariant) {
  const int32_t slot = NewSlot(carrier, format, count, uniform, invariant);
  if (uniform || invariant) {
    PlaceForever(slot);
  } else {
    SlotAt(slot).offset = pool_.Take(SlotAt(slot).bytes_per_lane());
    scope_->scratch.push_back(slot);
  }
  return slot;
}

int32_t Compiler::LoopBuffer(Carrier carrier, Format format, int64_t count) {
  const int32_t slot = NewSlot(carrier, format, count, false, false);
  SlotAt(slot).offset = pool_.TakeFresh(SlotAt(slot).bytes_per_lane());
  scope_->scratch.push_back(slot);
  return slot;
}

void Compiler::MakeExclusive(int32_t s) {
  Slot& slot = SlotAt(s);
  if (slot.offset < 0) return;
  pool_.Return(slot.offset, slot.bytes_per_lane());
  slot.offset = pool_.TakeFresh(slot.bytes_per_lane());
}

void Compiler::Store(RegionPlan& plan, int32_t slot) {
  if (!stored_.insert({&plan, slot}).second) return;
  plan.stored.push_back(slot);
  plan.stored_bytes_per_lane += SlotAt(slot).bytes_per_lane();
}

int32_t Compiler::Result(ValueId id, bool uniform, bool invariant) {
  const Value& value = ValueAt(id);
  const int32_t slot = NewSlot(CarrierOfValue(value), value.format.value_or(Format::kF64),
                               CountOf(id), uniform, invariant);
  Alias(id, slot);
  const bool stored = Stored(id) && !invariant;
  if (stored) Store(*scope_->plan, slot);
  if (stored && options_.adjoint) return slot;
  if (invariant) {
    PlaceForever(slot);
  } else {
    PlaceTemporary(slot);
  }
  return slot;
}

int32_t Compiler::Varying(int32_t slot) {
  const Slot from = SlotAt(slot);
  if (!from.uniform) return slot;
  if (from.invariant) {
    const auto known = widened_.find(slot);
    if (known != widened_.end()) return known->second;
  }
  const int32_t wide = SlotLike(slot, false, from.invariant);
  if (from.invariant) {
    PlaceForever(wide);
    widened_[slot] = wide;
  } else {
    PlaceTemporary(wide);
  }
  Emit(Make(kernels_.widen[SizeIndex(from.carrier)], wide, slot), wide);
  return wide;
}

int32_t Compiler::CopyOf(int32_t slot) {
  const Slot from = SlotAt(slot);
  const int32_t copy = SlotLike(slot, false, false);
  PlaceTemporary(copy);
  if (from.uniform) {
    Emit(Make(kernels_.widen[SizeIndex(from.carrier)], copy, slot), copy);
    return copy;
  }
  std::vector<int32_t> rows(static_cast<size_t>(from.count));
  for (size_t k = 0; k < rows.size(); ++k) rows[k] = static_cast<int32_t>(k);
  RowPlan& plan = plan_->rows.emplace_back();
  plan.rows = from.count;
  plan.lane_bytes = from.lane_bytes();
  plan.from = Keep(std::move(rows)).data();
  plan.operand = Keep(std::vector<int32_t>(static_cast<size_t>(from.count), 0)).data();
  plan.slots = Keep({slot}).data();
  plan.slot_uniform = Keep({0}).data();
  Instruction instruction = Make(kernels_.copy_rows, copy, slot);
  instruction.plan = &plan;
  instruction.rows = true;
  Emit(instruction, copy);
  return copy;
}

void Compiler::GiveUpPlace(Scope& scope, int32_t slot) {
  scope.kept.erase(slot);
  pool_.Return(SlotAt(slot).offset, SlotAt(slot).bytes_per_lane());
  SlotAt(slot).offset = -1;
}

int32_t Compiler::OwnedYield(Scope& scope, ValueId id, std::set<int32_t>& taken, bool stored) {
  const int32_t slot = At(id);
  const size_t root = static_cast<size_t>(uses_.root[Index(id)]);
  const bool computed_here = region_of_[root] == scope.plan && producer_[root] != nullptr;
  const bool shared = taken.contains(slot);
  int32_t owned = slot;
  if (!computed_here || shared || SlotAt(slot).uniform || SlotAt(slot).invariant) {
    owned = CopyOf(slot);
    if (stored) {
      Store(*scope.plan, owned);
      if (options_.adjoint) GiveUpPlace(scope, owned);
    }
  }
  taken.insert(owned);
  return owned;
}

}  // namespace simgrad::sim::cpu
