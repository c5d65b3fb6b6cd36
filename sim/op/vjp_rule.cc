#include "sim/op/vjp_rule.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim {

Op ShapeOp(OpCode code, Shape shape) {
  return {.code = code, .attributes = {.shape = std::move(shape)}};
}

Op AxesOp(OpCode code, std::vector<int64_t> axes) {
  return {.code = code, .attributes = {.axes = std::move(axes)}};
}

ValueId VjpRule::Kink(OpCode code, const Type& type, std::vector<int64_t> axes) {
  return Kink(AxesOp(code, std::move(axes)), type);
}

ValueId VjpRule::Kink(Op kink, const Type& type) {
  kink.role = op_.role;
  kink.site = op_.site;
  kink.operands = op_.operands;
  kink.label = op_.label;
  return w_.Tape(w_.Kink(op_.results[0], std::move(kink), type));
}

void VjpRule::Choice(ValueId condition, size_t first, size_t second) {
  if (Wants(second)) {
    const ValueId other = EmitMask({.code = OpCode::kNot, .operands = {condition}}, type_.shape);
    To(second, {g_, And(other)});
  }
  if (Wants(first)) To(first, {g_, And(condition)});
}

ValueId VjpRule::EmitUnder(const Mask& mask, Op op, const Type& type) {
  return EmitIn(w_.context().role, mask, std::move(op), type);
}

ValueId VjpRule::EmitPlain(Op op, const Type& type) {
  return EmitIn(Role::kAdjoint, {}, std::move(op), type);
}

ValueId VjpRule::EmitIn(Role role, const Mask& mask, Op op, const Type& type) {
  const auto before = w_.context();
  w_.SetContext({role, before.label, mask});
  const ValueId value = w_.Emit(std::move(op), type);
  w_.SetContext(before);
  return value;
}

ValueId VjpRule::Filled() {
  if (mask_.presence != Presence::kMasked) return g_;
  const ValueId zero = Const(0.0);
  return EmitUnder({}, {.code = OpCode::kSelect, .operands = {mask_.value, g_, zero}}, type_);
}

void VjpRule::SpellMask() {
  const auto before = w_.context();
  w_.SetContext({Role::kAdjoint, before.label, {}});
  mask_ = Mask::At(w_.Truth(true, type_.shape));
  w_.SetContext(before);
}

ValueId VjpRule::SpelledMask() {
  if (mask_.presence == Presence::kAlways) SpellMask();
  return mask_.value;
}

ValueId VjpRule::Nowhere(const Shape& shape) {
  return EmitMask({.code = OpCode::kLiteral, .attributes = {.literal = {0.0}}}, shape);
}

std::vector<int64_t> VjpRule::KeptAxes() const {
  std::vector<int64_t> kept;
  const auto& axes = op_.attributes.axes;
  for (size_t i = 0; i < OperandType(0).shape.size(); ++i) {
    const int64_t axis = static_cast<int64_t>(i);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) kept.push_back(axis);
  }
  return kept;
}

Op VjpRule::Widen() const {
  Op op = ShapeOp(OpCode::kBroadcast, OperandType(0).shape);
  op.attributes.dims = KeptAxes();
  return op;
}

Passage MaskedPassage(const Program&, const Op&, size_t) { return Passage::kMasked; }

Passage PassageTo(const Program& program, const Op& op, size_t operand) {
  const OpInfo& info = InfoOf(op.code);
  if (info.derivative == Derivative::kNone) return Passage::kNone;
  return info.passage != nullptr ? info.passage(program, op, operand) : Passage::kSame;
}

void WriteVjp(AdjointWriter& writer, const Op& op) {
  const OpInfo& info = InfoOf(op.code);
  if (info.vjp == nullptr || op.results.size() != 1) return;
  const Slot slot = writer.SlotOf(op.results[0]);
  if (slot.presence() == Presence::kNever) return;
  const Role role = op.role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  writer.SetContext({role, op.label, slot.mask});
  VjpRule rule(writer, op, slot);
  info.vjp(rule);
  writer.SetContext({});
}

}  // namespace simgrad::sim
