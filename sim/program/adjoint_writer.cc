#include "sim/program/adjoint_writer.h"

#include <algorithm>

#include "sim/program/told.h"

namespace simgrad::sim {

AdjointWriter::AdjointWriter(Program& program, std::vector<bool> active, PassBudget& budget)
    : program_(program), budget_(budget), active_(std::move(active)) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].kind == InputKind::kState) continue;
    input_of_[Index(program.inputs[i].value)] = static_cast<int32_t>(i);
  }
}

ValueId AdjointWriter::AddValue(Type type, std::string name) {
  const ValueId id = program_.AddValue(std::move(type), std::move(name));
  budget_.WroteValue(program_[id]);
  return id;
}

void AdjointWriter::Append(Region& region, Op op) {
  budget_.WroteOp(op);
  region.ops.push_back(std::move(op));
}

void AdjointWriter::Open(Region& region) { scopes_.push_back({&region, {}, {}, {}, 0}); }

void AdjointWriter::Close(Region&) { scopes_.pop_back(); }

void AdjointWriter::DefinesPrimal(const Region& primal) {
  const size_t depth = scopes_.size() - 1;
  for (ValueId id : primal.args) depth_of_[Index(id)] = depth;
  for (const Op& op : primal.ops) {
    budget_.Visit(1 + static_cast<int64_t>(op.results.size()));
    SetRole(op);
    for (ValueId id : op.results) depth_of_[Index(id)] = depth;
    if (op.code == OpCode::kLiteral) literals_.try_emplace(Index(op.results[0]), op);
    if (op.code != OpCode::kOwnVjp) continue;
    const size_t given = op.operands.size() - op.results.size();
    for (size_t r = 0; r < op.results.size(); ++r) {
      given_.try_emplace(Index(op.results[r]), Given(op.operands[given + r]));
    }
  }
}

std::vector<Slot> AdjointWriter::MakeArgs(Region& region, const std::vector<SlotSpec>& specs) {
  std::vector<Slot> slots(specs.size());
  budget_.WroteIds(2 * static_cast<int64_t>(specs.size()));
  for (size_t i = 0; i < specs.size(); ++i) {
    slots[i].mask.presence = specs[i].presence;
    if (specs[i].presence != Presence::kNever) slots[i].cotangent = AddValue(specs[i].type);
    region.args.push_back(slots[i].cotangent);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].presence == Presence::kMasked) {
      slots[i].mask.value = AddValue({ElementType::kBool, specs[i].type.shape});
    }
    region.args.push_back(slots[i].mask.value);
  }
  return slots;
}

void AdjointWriter::Append(std::vector<ValueId>& list, const std::vector<Slot>& slots,
                           const std::vector<Presence>& presence, const std::vector<Type>& types) {
  budget_.WroteIds(2 * static_cast<int64_t>(slots.size()));
  for (size_t i = 0; i < slots.size(); ++i) {
    ValueId id = presence[i] == Presence::kNever ? ValueId::kNone : slots[i].cotangent;
    if (presence[i] != Presence::kNever && id == ValueId::kNone) id = Number(0.0, types[i]);
    list.push_back(id);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    ValueId id = ValueId::kNone;
    if (presence[i] == Presence::kMasked) {
      const bool masked = slots[i].presence() == Presence::kMasked;
      id = masked ? slots[i].mask.value
                  : Truth(slots[i].presence() == Presence::kAlways, types[i].shape);
    }
    list.push_back(id);
  }
}

void AdjointWriter::Yield(Region& region, const std::vector<Slot>& slots,
                          const std::vector<Presence>& presence, const std::vector<Type>& types) {
  Append(region.yields, slots, presence, types);
}

Slot AdjointWriter::SlotOf(ValueId primal) const {
  const auto found = scopes_.back().slots.find(Index(primal));
  return found == scopes_.back().slots.end() ? Slot{} : found->second;
}

void AdjointWriter::SetSlot(ValueId primal, const Slot& slot) {
  scopes_.back().slots[Index(primal)] = slot;
}

Role AdjointWriter::FanInRole(ValueId primal) const {
  const auto found = role_of_.find(Index(primal));
  return found != role_of_.end() && found->second == Role::kObjective ? Role::kObjective
                                                                      : Role::kAdjoint;
}

void AdjointWriter::SetRole(const Op& op) {
  for (ValueId id : op.results) role_of_[Index(id)] = op.role;
  for (const Region& region : op.regions) {
    for (ValueId id : region.args) {
      if (id != ValueId::kNone) role_of_[Index(id)] = op.role;
    }
  }
}

void AdjointWriter::Contribute(ValueId primal, const Slot& slot) {
  if (slot.presence() == Presence::kNever || !IsActive(primal)) return;
  const auto input = input_of_.find(Index(primal));
  if (input != input_of_.end()) {
    if (!is_quiet_) Accumulate(input->second, slot);
    return;
  }
  SetSlot(primal, Merged(SlotOf(primal), slot, FanInRole(primal)));
}

void AdjointWriter::Accumulate(int32_t input, const Slot& slot) {
  Op op{.code = OpCode::kAccumulate,
        .role = Role::kGradient,
        .operands = {slot.cotangent},
        .attributes = {.input = input},
        .label = context_.label};
  if (slot.presence() == Presence::kMasked) {
    op.operands.push_back(slot.mask.value);
    op.attributes.where = slot.mask.value;
  }
  Push(std::move(op));
}

void AdjointWriter::Tell(const std::string& site, ValueId counted, ValueId largest) {
  auto at = std::find(told_.begin(), told_.end(), site);
  if (at == told_.end()) at = told_.insert(told_.end(), site);
  const int64_t number = at - told_.begin();
  for (const ToldPart part : {ToldPart::kCounted, ToldPart::kLargest}) {
    const bool counts = part == ToldPart::kCounted;
    Op op{.code = OpCode::kAccumulate,
          .role = Role::kGradient,
          .operands = {counts ? counted : largest},
          .label = context_.label};
    op.attributes.combine = counts ? Combine::kNone : Combine::kMax;
    op.attributes.input = UnplacedTold(number, part);
    Push(std::move(op));
  }
}

// The first contribution is assigned, a later one added where it is present.
Slot AdjointWriter::Merged(const Slot& first, const Slot& second, Role role) {
  if (first.presence() == Presence::kNever) return second;
  if (second.presence() == Presence::kNever) return first;
  const Context before = context_;
  context_.role = role;
  context_.mask = Mask::Always();
  const Type type = program_[first.cotangent].type;
  Slot merged{ValueId::kNone, Mask::Always()};
  const bool first_always = first.presence() == Presence::kAlways;
  const bool second_always = second.presence() == Presence::kAlways;
  if (first_always && second_always) {
    merged.cotangent = Emit(OpCode::kAdd, {first.cotangent, second.cotangent}, type);
  } else if (first_always) {
    merged.cotangent =
        Emit(OpCode::kMerge, {first.cotangent, second.cotangent, second.mask.value}, type);
  } else if (second_always) {
    merged.cotangent =
        Emit(OpCode::kMerge, {second.cotangent, first.cotangent, first.mask.value}, type);
  } else {
    const ValueId either =
        Emit(OpCode::kOr, {first.mask.value, second.mask.value}, {ElementType::kBool, type.shape});
    merged.mask = Mask::At(either);
    context_.mask = merged.mask;
    merged.cotangent =
        Emit(OpCode::kMerge2,
             {first.cotangent, first.mask.value, second.cotangent, second.mask.value}, type);
  }
  context_ = before;
  return merged;
}

ValueId AdjointWriter::Emit(OpCode code, std::vector<ValueId> operands, const Type& type) {
  return Emit({.code = code, .operands = std::move(operands)}, type);
}

ValueId AdjointWriter::Emit(Op op, const Type& type) {
  op.role = context_.role;
  op.label = context_.label;
  const ValueId where = context_.mask.value;
  const bool applies = context_.mask.presence == Presence::kMasked &&
                       type.element == ElementType::kReal &&
                       program_[where].type.shape == type.shape;
  if (applies) op.attributes.where = where;
  op.results = {AddValue(type)};
  const ValueId result = op.results[0];
  Push(std::move(op));
  return result;
}

ValueId AdjointWriter::Number(double value, const Type& type) {
  const ValueId result = AddValue(type);
  Push({.code = OpCode::kLiteral,
        .role = context_.role,
        .results = {result},
        .attributes = {.literal = {value}}});
  return result;
}

ValueId AdjointWriter::Truth(bool value, const Shape& shape) {
  return Number(value ? 1.0 : 0.0, {ElementType::kBool, shape});
}

ValueId AdjointWriter::Given(ValueId id) const {
  const auto found = given_.find(Index(id));
  return found == given_.end() ? id : found->second;
}

const Op* AdjointWriter::LiteralOf(ValueId id) const {
  const auto found = literals_.find(Index(Given(id)));
  return found == literals_.end() ? nullptr : &found->second;
}

template <class Make>
ValueId AdjointWriter::ReadOnce(Scope& scope, ValueId primal, const std::string& label,
                                const Make& make) {
  NoteRead(scope, primal, label);
  const auto [known, is_new] = scope.tapes.try_emplace(Index(primal), ValueId::kNone);
  if (!is_new) return known->second;
  Op op = make();
  op.results = {AddValue(program_[primal].type, program_[primal].name)};
  known->second = op.results[0];
  Append(*scope.region, std::move(op));
  return known->second;
}

ValueId AdjointWriter::Tape(ValueId primal) {
  primal = Given(primal);
  // Inputs and literals are no values of a tape: each use rounds them once to the role of its own.
  if (IsInput(primal)) return primal;
  if (const Op* literal = LiteralOf(primal)) {
    return ReadOnce(scopes_.front(), primal, literal->label, [&] { return *literal; });
  }
  const auto depth = depth_of_.find(Index(primal));
  Scope& scope = scopes_[depth == depth_of_.end() ? 0 : depth->second];
  return ReadOnce(scope, primal, context_.label, [&]() -> Op {
    return {.code = OpCode::kTape,
            .role = Role::kTape,
            .attributes = {.primal = primal},
            .label = context_.label};
  });
}

void AdjointWriter::NoteRead(Scope& scope, ValueId primal, const std::string& label) {
  if (&scope == &scopes_.back()) return;
  const size_t depth = static_cast<size_t>(&scope - scopes_.data());
  const std::pair<int32_t, int64_t> now = {order_->FirstMet(depth, reader_), reads_++};
  const auto known = scope.reads.find(Index(primal));
  if (known != scope.reads.end()) {
    if (now < known->second.first) known->second = {now, label, known->second.at};
  } else if (scope.tapes.count(Index(primal)) == 0) {
    scope.reads[Index(primal)] = {now, label, scope.region->ops.size() - scope.first_read};
  }
}

void AdjointWriter::BeginReads(size_t below) {
  Scope& scope = scopes_[scopes_.size() - 1 - below];
  scope.reads.clear();
  scope.first_read = scope.region->ops.size();
}

void AdjointWriter::SortReads(size_t below) {
  Scope& scope = scopes_[scopes_.size() - 1 - below];
  std::vector<Read> reads;
  for (auto& [primal, read] : scope.reads) reads.push_back(std::move(read));
  scope.reads.clear();
  std::sort(reads.begin(), reads.end(),
            [](const Read& a, const Read& b) { return a.first < b.first; });
  const auto first = scope.region->ops.begin() + static_cast<int64_t>(scope.first_read);
  std::vector<Op> sorted;
  for (const Read& read : reads) {
    sorted.push_back(std::move(first[static_cast<int64_t>(read.at)]));
    sorted.back().label = read.label;
  }
  std::move(sorted.begin(), sorted.end(), first);
}

Mask AdjointWriter::And(const Mask& a, ValueId condition) {
  if (a.presence == Presence::kAlways) return Mask::At(condition);
  const Context before = context_;
  context_.role = Role::kAdjoint;
  const ValueId both = Emit(OpCode::kAnd, {a.value, condition}, program_[condition].type);
  context_ = before;
  return Mask::At(both);
}

ValueId AdjointWriter::Kink(ValueId anchor, Op op, const Type& type) {
  const auto known = kinks_.find(Index(anchor));
  if (known != kinks_.end()) return known->second.first.results[0];
  op.results = {AddValue(type)};
  const ValueId result = op.results[0];
  depth_of_[Index(result)] = depth_of_[Index(anchor)];
  budget_.WroteOp(op);
  kinks_[Index(anchor)] = {std::move(op), false};
  ++kinks_to_insert_;
  return result;
}

void AdjointWriter::InsertKinks(Region& primal) {
  if (kinks_to_insert_ == 0) return;
  std::vector<Op> ops;
  for (Op& op : primal.ops) {
    budget_.Visit();
    const size_t anchor = op.results.empty() ? 0 : Index(op.results[0]);
    ops.push_back(std::move(op));
    const auto kink = kinks_.find(anchor);
    if (ops.back().results.empty() || kink == kinks_.end() || kink->second.second) continue;
    ops.push_back(kink->second.first);
    kink->second.second = true;
    --kinks_to_insert_;
  }
  primal.ops = std::move(ops);
}

}  // namespace simgrad::sim
