#include "sim/program/op_vjp.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace simgrad::sim {
namespace {

// One operation being reversed: g is the cotangent of its result, m where it is present.
class Rule {
 public:
  Rule(AdjointWriter& writer, const Op& op, const Slot& slot)
      : w_(writer), op_(op), g_(slot.cotangent), mask_(slot.mask) {
    type_ = w_.program()[op.results[0]].type;
  }

  void Write() {
    switch (op_.code) {
      case OpCode::kSum:
      case OpCode::kReduceMax:
      case OpCode::kReduceMin:
      case OpCode::kCumsum:
        return Reduction();
      case OpCode::kBroadcast:
      case OpCode::kReshape:
      case OpCode::kSlice:
      case OpCode::kPad:
      case OpCode::kConcat:
        return Shaped();
      case OpCode::kSelect:
        return Choice(w_.Tape(op_.operands[0]), 1, 2);
      case OpCode::kMax:
        return Choice(Taken(OpCode::kGt), 0, 1);
      case OpCode::kMin:
        return Choice(Taken(OpCode::kLt), 0, 1);
      case OpCode::kCast:
        return To(0, g_);
      case OpCode::kAdd:
      case OpCode::kSub:
      case OpCode::kMul:
      case OpCode::kDiv:
      case OpCode::kFma:
      case OpCode::kMod:
      case OpCode::kAtan2:
      case OpCode::kPow:
        return Several();
      default:
        return One();
    }
  }

 private:
  bool Wants(size_t operand) const { return w_.IsActive(op_.operands[operand]); }
  void To(size_t operand, ValueId cotangent) { To(operand, {cotangent, mask_}); }
  void To(size_t operand, const Slot& slot) { w_.Contribute(op_.operands[operand], slot); }
  ValueId X(size_t operand) { return w_.Tape(op_.operands[operand]); }
  ValueId Y() { return w_.Tape(op_.results[0]); }
  ValueId Do(OpCode code, ValueId a, ValueId b) { return w_.Emit(code, {a, b}, type_); }
  ValueId Do(OpCode code, ValueId a) { return w_.Emit(code, {a}, type_); }
  ValueId Mul(ValueId a, ValueId b) { return Do(OpCode::kMul, a, b); }
  ValueId Div(ValueId a, ValueId b) { return Do(OpCode::kDiv, a, b); }
  ValueId Neg(ValueId a) { return Do(OpCode::kNeg, a); }
  ValueId Const(double value) { return w_.Number(value, type_); }

  // In what follows every operation is a statement: C++ leaves the order of arguments open, and the
  // order of the operations is the text of the program.

  // Operations of one operand.
  void One() {
    if (op_.operands.empty() || !Wants(0)) return;
    switch (op_.code) {
      case OpCode::kNeg:
        return To(0, Neg(g_));
      case OpCode::kAbs:
        return To(0, Mul(g_, w_.Tape(SignKink())));
      case OpCode::kExp:
        return To(0, Mul(g_, Y()));
      case OpCode::kLog:
        return To(0, Div(g_, X(0)));
      case OpCode::kSqrt: {
        const ValueId half = Const(0.5);
        const ValueId t = Mul(half, g_);
        return To(0, Div(t, Y()));
      }
      case OpCode::kExpm1: {
        const ValueId y = Y();
        const ValueId one = Const(1.0);
        return To(0, Mul(g_, Do(OpCode::kAdd, y, one)));
      }
      case OpCode::kLog1p: {
        const ValueId one = Const(1.0);
        const ValueId x = X(0);
        return To(0, Div(g_, Do(OpCode::kAdd, one, x)));
      }
      case OpCode::kSin:
        return To(0, Mul(g_, Do(OpCode::kCos, X(0))));
      case OpCode::kCos:
        return To(0, Neg(Mul(g_, Do(OpCode::kSin, X(0)))));
      case OpCode::kTanh: {
        const ValueId y = Y();
        const ValueId one = Const(1.0);
        const ValueId squared = Mul(y, y);
        return To(0, Mul(g_, Do(OpCode::kSub, one, squared)));
      }
      case OpCode::kSigmoid: {
        const ValueId y = Y();
        const ValueId t = Mul(g_, y);
        const ValueId one = Const(1.0);
        return To(0, Mul(t, Do(OpCode::kSub, one, y)));
      }
      case OpCode::kSoftplus:
        return To(0, Mul(g_, Do(OpCode::kSigmoid, X(0))));
      default:
        return;
    }
  }

  // Operations of several operands; the last operand is the later use.
  void Several() {
    switch (op_.code) {
      case OpCode::kAdd:
        if (Wants(1)) To(1, g_);
        if (Wants(0)) To(0, g_);
        return;
      case OpCode::kSub:
        if (Wants(1)) To(1, Neg(g_));
        if (Wants(0)) To(0, g_);
        return;
      case OpCode::kFma:
        if (Wants(2)) To(2, g_);
        [[fallthrough]];
      case OpCode::kMul:
        if (Wants(1)) To(1, Mul(g_, X(0)));
        if (Wants(0)) To(0, Mul(g_, X(1)));
        return;
      case OpCode::kDiv:
        return Quotient();
      case OpCode::kMod:
        return Remainder();
      case OpCode::kAtan2:
        return Angle();
      default:
        return Power();
    }
  }

  // q = a / b: g/b and -((g/b) q).
  void Quotient() {
    if (!Wants(0) && !Wants(1)) return;
    const ValueId t = Div(g_, X(1));
    if (Wants(1)) To(1, Neg(Mul(t, Y())));
    if (Wants(0)) To(0, t);
  }

  // a - b floor(a / b): g and -(g floor(a / b)).
  void Remainder() {
    if (Wants(1)) {
      const ValueId a = X(0);
      const ValueId b = X(1);
      To(1, Neg(Mul(g_, Do(OpCode::kFloor, Div(a, b)))));
    }
    if (Wants(0)) To(0, g_);
  }

  // atan2(y, x), d = x x + y y: (g x)/d and -((g y)/d).
  void Angle() {
    if (!Wants(0) && !Wants(1)) return;
    const ValueId y = X(0);
    const ValueId x = X(1);
    const ValueId xx = Mul(x, x);
    const ValueId yy = Mul(y, y);
    const ValueId d = Do(OpCode::kAdd, xx, yy);
    if (Wants(1)) To(1, Neg(Div(Mul(g_, y), d)));
    if (Wants(0)) To(0, Div(Mul(g_, x), d));
  }

  // p = a^b: (g b) a^(b-1) and (g p) log a.
  void Power() {
    if (!Wants(0) && !Wants(1)) return;
    const ValueId a = X(0);
    if (Wants(1)) {
      const ValueId t = Mul(g_, Y());
      To(1, Mul(t, Do(OpCode::kLog, a)));
    }
    if (Wants(0)) {
      const ValueId b = X(1);
      const ValueId t = Mul(g_, b);
      const ValueId one = Const(1.0);
      const ValueId less = Do(OpCode::kSub, b, one);
      To(0, Mul(t, Do(OpCode::kPow, a, less)));
    }
  }

  // The primal comparison that says whether the first operand of max or min was taken.
  ValueId Taken(OpCode comparison) {
    Op kink;
    kink.code = comparison;
    kink.role = op_.role;
    kink.site = op_.site;
    kink.label = op_.label;
    kink.operands = op_.operands;
    return w_.Tape(w_.Kink(op_.results[0], std::move(kink), {ElementType::kBool, type_.shape}));
  }

  ValueId SignKink() {
    Op kink;
    kink.code = OpCode::kSign;
    kink.role = op_.role;
    kink.site = op_.site;
    kink.label = op_.label;
    kink.operands = op_.operands;
    return w_.Kink(op_.results[0], std::move(kink), type_);
  }

  // The cotangent goes to the operand taken only.
  void Choice(ValueId condition, size_t first, size_t second) {
    if (Wants(second)) {
      const auto before = w_.context();
      w_.SetContext({Role::kAdjoint, before.label, {}});
      const ValueId other = w_.Emit(OpCode::kNot, {condition}, {ElementType::kBool, type_.shape});
      w_.SetContext(before);
      To(second, {g_, w_.And(mask_, other)});
    }
    if (Wants(first)) To(first, {g_, w_.And(mask_, condition)});
  }

  // By value: adding operations moves the table of values.
  Type OperandType(size_t operand) const { return w_.program()[op_.operands[operand]].type; }

  // One bool operation on the mask, for shape operations; an always or never mask needs none.
  template <typename Build>
  Mask MapMask(const Shape& shape, const Build& build) {
    if (mask_.presence != Presence::kMasked) return mask_;
    Op op = build();
    op.operands = {mask_.value};
    const auto before = w_.context();
    w_.SetContext({Role::kAdjoint, before.label, {}});
    const ValueId value = w_.Emit(std::move(op), {ElementType::kBool, shape});
    w_.SetContext(before);
    return Mask::At(value);
  }

  // The same shape operation on cotangent and mask, and the contribution of both.
  template <typename Build>
  void MapSlot(size_t operand, const Build& build) {
    const Type type = OperandType(operand);
    const Mask mask = MapMask(type.shape, build);
    const auto before = w_.context();
    w_.SetContext({before.role, before.label, mask});
    Op op = build();
    op.operands = {g_};
    const ValueId cotangent = w_.Emit(std::move(op), type);
    w_.SetContext(before);
    To(operand, {cotangent, mask});
  }

  static Op ShapeOp(OpCode code, Shape shape) {
    Op op;
    op.code = code;
    op.attributes.shape = std::move(shape);
    return op;
  }

  void Shaped() {
    if (op_.code == OpCode::kConcat) return Concat();
    if (!Wants(0)) return;
    const Shape shape = OperandType(0).shape;
    if (op_.code == OpCode::kBroadcast) return BroadcastVjp();
    if (op_.code == OpCode::kReshape) {
      return MapSlot(0, [&] { return ShapeOp(OpCode::kReshape, shape); });
    }
    if (op_.code == OpCode::kSlice) return SliceVjp();
    MapSlot(0, [&] {
      Op op = ShapeOp(OpCode::kSlice, shape);
      op.attributes.start = op_.attributes.start;
      return op;
    });
  }

  // The cotangent outside the slice is absent: the mask says so even where g is present everywhere.
  void SliceVjp() {
    const Shape shape = OperandType(0).shape;
    if (mask_.presence == Presence::kAlways && shape != type_.shape) {
      const auto before = w_.context();
      w_.SetContext({Role::kAdjoint, before.label, {}});
      mask_ = Mask::At(w_.Truth(true, type_.shape));
      w_.SetContext(before);
    }
    MapSlot(0, [&] {
      Op op = ShapeOp(OpCode::kPad, shape);
      op.attributes.start = op_.attributes.start;
      return op;
    });
  }

  void Concat() {
    const size_t axis = static_cast<size_t>(op_.attributes.axes[0]);
    std::vector<int64_t> starts;
    int64_t offset = 0;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      starts.push_back(offset);
      offset += OperandType(i).shape[axis];
    }
    for (size_t i = op_.operands.size(); i-- > 0;) {
      if (!Wants(i)) continue;
      MapSlot(i, [&] {
        Op op = ShapeOp(OpCode::kSlice, OperandType(i).shape);
        op.attributes.start.assign(type_.shape.size(), 0);
        op.attributes.start[axis] = starts[i];
        return op;
      });
    }
  }

  // g where it is present, +0 elsewhere.
  ValueId Filled() {
    if (mask_.presence != Presence::kMasked) return g_;
    const ValueId zero = Const(0.0);
    return w_.Emit(OpCode::kSelect, {mask_.value, g_, zero}, type_);
  }

  // Sum over the axes that the broadcast added.
  void BroadcastVjp() {
    const Type type = OperandType(0);
    std::vector<int64_t> axes;
    for (size_t i = 0; i < type_.shape.size(); ++i) {
      const auto& dims = op_.attributes.dims;
      const int64_t axis = static_cast<int64_t>(i);
      if (std::find(dims.begin(), dims.end(), axis) == dims.end()) axes.push_back(axis);
    }
    const Mask mask = MapMask(type.shape, [&] {
      Op op;
      op.code = OpCode::kAny;
      op.attributes.axes = axes;
      return op;
    });
    const auto before = w_.context();
    w_.SetContext({before.role, before.label, {}});
    Op sum;
    sum.code = OpCode::kSum;
    sum.attributes.axes = axes;
    sum.operands = {Filled()};
    w_.SetContext({before.role, before.label, mask});
    const ValueId cotangent = w_.Emit(std::move(sum), type);
    w_.SetContext(before);
    To(0, {cotangent, mask});
  }

  // Axes of the operand that are left in the result of a reduction.
  std::vector<int64_t> KeptAxes() const {
    std::vector<int64_t> kept;
    const auto& axes = op_.attributes.axes;
    for (size_t i = 0; i < OperandType(0).shape.size(); ++i) {
      const int64_t axis = static_cast<int64_t>(i);
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) kept.push_back(axis);
    }
    return kept;
  }

  Op Widen() const {
    Op op = ShapeOp(OpCode::kBroadcast, OperandType(0).shape);
    op.attributes.dims = KeptAxes();
    return op;
  }

  void Reduction() {
    if (!Wants(0)) return;
    if (op_.code == OpCode::kSum) return MapSlot(0, [&] { return Widen(); });
    if (op_.code == OpCode::kCumsum) return CumsumVjp();
    ExtremeVjp();
  }

  // Prefix sums turn round: g[i] + g[i + 1] + ... A line is present where any of its elements is.
  void CumsumVjp() {
    Op any;
    any.code = OpCode::kAny;
    any.attributes.axes = op_.attributes.axes;
    Shape reduced;
    for (int64_t axis : KeptAxes()) reduced.push_back(type_.shape[static_cast<size_t>(axis)]);
    Mask mask = MapMask(reduced, [&] { return any; });
    const auto before = w_.context();
    if (mask.presence == Presence::kMasked) {
      w_.SetContext({Role::kAdjoint, before.label, {}});
      Op widen = Widen();
      widen.operands = {mask.value};
      mask = Mask::At(w_.Emit(std::move(widen), {ElementType::kBool, type_.shape}));
    }
    w_.SetContext({before.role, before.label, {}});
    Op sum;
    sum.code = OpCode::kCumsum;
    sum.attributes.axes = op_.attributes.axes;
    sum.attributes.reverse = !op_.attributes.reverse;
    sum.operands = {Filled()};
    w_.SetContext({before.role, before.label, mask});
    const ValueId cotangent = w_.Emit(std::move(sum), type_);
    w_.SetContext(before);
    To(0, {cotangent, mask});
  }

  // Index of the first extreme along the reduced axis.
  ValueId ArgKink() {
    const bool max = op_.code == OpCode::kReduceMax;
    Op kink;
    kink.code = max ? OpCode::kArgmax : OpCode::kArgmin;
    kink.role = op_.role;
    kink.site = op_.site;
    kink.label = op_.label;
    kink.operands = op_.operands;
    kink.attributes.axes = op_.attributes.axes;
    return w_.Kink(op_.results[0], std::move(kink), {ElementType::kI32, type_.shape});
  }

  void ExtremeVjp() {
    const Type type = OperandType(0);
    const ValueId index = w_.Tape(ArgKink());
    const auto before = w_.context();
    w_.SetContext({Role::kAdjoint, before.label, {}});
    Op widen = Widen();
    widen.operands = {index};
    const Type integers{ElementType::kI32, type.shape};
    const ValueId wide = w_.Emit(std::move(widen), integers);
    Op iota;
    iota.code = OpCode::kLiteral;
    iota.attributes.literal = Positions(type.shape);
    const ValueId positions = w_.Emit(std::move(iota), integers);
    const ValueId taken = w_.Emit(OpCode::kEq, {wide, positions}, {ElementType::kBool, type.shape});
    const Mask mask = MapMask(type.shape, [&] { return Widen(); });
    const Mask where = w_.And(mask, taken);
    w_.SetContext({before.role, before.label, where});
    Op spread = Widen();
    spread.operands = {g_};
    const ValueId cotangent = w_.Emit(std::move(spread), type);
    w_.SetContext(before);
    To(0, {cotangent, where});
  }

  // Number of each element along the reduced axis.
  std::vector<double> Positions(const Shape& shape) const {
    const int64_t count = ElementCount(shape);
    std::vector<double> positions(static_cast<size_t>(count));
    int64_t inner = 1;
    const size_t axis = static_cast<size_t>(op_.attributes.axes[0]);
    for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    for (int64_t i = 0; i < count; ++i) {
      positions[static_cast<size_t>(i)] = static_cast<double>((i / inner) % shape[axis]);
    }
    return positions;
  }

  AdjointWriter& w_;
  const Op& op_;
  ValueId g_;
  Mask mask_;
  Type type_;
};

}  // namespace

Passage PassageTo(const Program& program, const Op& op, size_t operand) {
  switch (op.code) {
    case OpCode::kReduceMax:
    case OpCode::kReduceMin:
    case OpCode::kMax:
    case OpCode::kMin:
      return Passage::kMasked;
    case OpCode::kSelect:
      return operand == 0 ? Passage::kNone : Passage::kMasked;
    case OpCode::kSlice: {
      const bool whole = program[op.operands[0]].type.shape == program[op.results[0]].type.shape;
      return whole ? Passage::kSame : Passage::kMasked;
    }
    case OpCode::kSign:
    case OpCode::kFloor:
    case OpCode::kRound:
    case OpCode::kArgmax:
    case OpCode::kArgmin:
    case OpCode::kAny:
    case OpCode::kConvert:
    case OpCode::kStopGradient:
    case OpCode::kLiteral:
    case OpCode::kEvent:
      return Passage::kNone;
    default:
      return Passage::kSame;
  }
}

void WriteVjp(AdjointWriter& writer, const Op& op) {
  if (op.results.size() != 1) return;
  const Slot slot = writer.SlotOf(op.results[0]);
  if (slot.presence() == Presence::kNever) return;
  const Role role = op.role == Role::kObjective ? Role::kObjective : Role::kAdjoint;
  writer.SetContext({role, op.label, slot.mask});
  Rule(writer, op, slot).Write();
  writer.SetContext({});
}

}  // namespace simgrad::sim
