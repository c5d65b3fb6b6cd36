// The interface with which an entry's vjp is written: one operation being reversed.
//
// A rule writes each operation in a statement of its own: the order of operations is the text of
// the program, and C++ does not define the order in which arguments are evaluated.
#pragma once

#include <utility>
#include <vector>

#include "sim/op/op_info.h"
#include "sim/program/adjoint_writer.h"

namespace simgrad::sim {

class VjpRule {
 public:
  VjpRule(AdjointWriter& writer, const Op& op, const Slot& slot)
      : w_(writer), op_(op), g_(slot.cotangent), mask_(slot.mask) {
    type_ = w_.program()[op.results[0]].type;
  }

  const Op& op() const { return op_; }
  const Type& type() const { return type_; }  // of the result
  // Returned by value, as adding operations reallocates the table of values.
  Type OperandType(size_t operand) const { return w_.program()[op_.operands[operand]].type; }
  // Returns whether the operand has a cotangent; for one without, a rule writes nothing.
  bool Wants(size_t operand) const { return w_.IsActive(op_.operands[operand]); }

  // Returns whether the operand is an input of the world other than a state, or a literal.
  bool IsGiven(size_t operand) const {
    const ValueId id = op_.operands[operand];
    return w_.IsInput(id) || w_.IsLiteral(id);
  }

  // The cotangent of the result, and where it is present.
  ValueId g() const { return g_; }
  const Mask& mask() const { return mask_; }
  // Primal values read from the tape: an operand, the result.
  ValueId X(size_t operand) { return w_.Tape(op_.operands[operand]); }
  ValueId Y() { return w_.Tape(op_.results[0]); }

  // Operations of the type of the result, where the cotangent is present.
  ValueId Do(OpCode code, ValueId a, ValueId b) { return w_.Emit(code, {a, b}, type_); }
  ValueId Do(OpCode code, ValueId a) { return w_.Emit(code, {a}, type_); }
  ValueId Add(ValueId a, ValueId b) { return Do(OpCode::kAdd, a, b); }
  ValueId Sub(ValueId a, ValueId b) { return Do(OpCode::kSub, a, b); }
  ValueId Mul(ValueId a, ValueId b) { return Do(OpCode::kMul, a, b); }
  ValueId Div(ValueId a, ValueId b) { return Do(OpCode::kDiv, a, b); }
  ValueId Neg(ValueId a) { return Do(OpCode::kNeg, a); }
  ValueId Const(double value) { return w_.Number(value, type_); }
  // A literal stands for itself, under no mask.
  ValueId Splat(double value, const Type& type) {
    Op literal{.code = OpCode::kLiteral, .attributes = {.literal = {value}}};
    return EmitUnder({}, std::move(literal), type);
  }

  // Contributes to the cotangent of an operand.
  void To(size_t operand, ValueId cotangent) { To(operand, {cotangent, mask_}); }
  void To(size_t operand, const Slot& slot) { w_.Contribute(op_.operands[operand], slot); }

  // Adds a primal operation on the same operands behind this one, to record which way it went.
  ValueId Kink(OpCode code, const Type& type, std::vector<int64_t> axes = {});
  ValueId Kink(Op kink, const Type& type);
  // The cotangent goes to `first` where the condition holds, else to `second`.
  void Choice(ValueId condition, size_t first, size_t second);
  // Applies the operation that `build` returns to cotangent and mask, and contributes both.
  template <typename Build>
  void MapSlot(size_t operand, const Build& build);
  // Applies a bool operation to the mask; an always or never mask needs none.
  template <typename Build>
  Mask MapMask(const Shape& shape, const Build& build);

  // Writes `op` under `mask` in the role of the rule; or, for masks and indices, everywhere and in
  // role `adjoint`.
  ValueId EmitUnder(const Mask& mask, Op op, const Type& type);
  ValueId EmitPlain(Op op, const Type& type);
  ValueId EmitMask(Op op, const Shape& shape) {
    return EmitPlain(std::move(op), {ElementType::kBool, shape});
  }
  // g where it is present, +0 elsewhere.
  ValueId Filled();
  // Replaces an always mask by an explicit literal.
  void SpellMask();
  // The mask as a value, also where the cotangent is present everywhere.
  ValueId SpelledMask();
  // The mask that is false everywhere.
  ValueId Nowhere(const Shape& shape);
  Mask And(ValueId condition) { return w_.And(mask_, condition); }
  Mask And(const Mask& mask, ValueId condition) { return w_.And(mask, condition); }

  // Axes of the operand that are left in the result of a reduction.
  std::vector<int64_t> KeptAxes() const;
  // The broadcast from a reduction's result to its operand.
  Op Widen() const;

 private:
  ValueId EmitIn(Role role, const Mask& mask, Op op, const Type& type);

  AdjointWriter& w_;
  const Op& op_;
  ValueId g_;
  Mask mask_;
  Type type_;
};

Op ShapeOp(OpCode code, Shape shape);
Op AxesOp(OpCode code, std::vector<int64_t> axes);

template <typename Build>
Mask VjpRule::MapMask(const Shape& shape, const Build& build) {
  if (mask_.presence != Presence::kMasked) return mask_;
  Op op = build();
  op.operands = {mask_.value};
  return Mask::At(EmitMask(std::move(op), shape));
}

template <typename Build>
void VjpRule::MapSlot(size_t operand, const Build& build) {
  const Type type = OperandType(operand);
  const Mask mask = MapMask(type.shape, build);
  Op op = build();
  op.operands = {g_};
  To(operand, {EmitUnder(mask, std::move(op), type), mask});
}

// Contributes the cotangents of `op`'s operands, given the slot of its one result.
void WriteVjp(AdjointWriter& writer, const Op& op);

// A Passage rule: every operand's cotangent is masked.
Passage MaskedPassage(const Program& program, const Op& op, size_t operand);

// Returns where the cotangent of an operand is present.
Passage PassageTo(const Program& program, const Op& op, size_t operand);

}  // namespace simgrad::sim
