// Operations that move elements.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/op/evaluate.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

// The row-major index of element `flat` of `shape`, per axis.
std::vector<int64_t> Unflatten(int64_t flat, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

const Shape& ShapeOf(const Evaluation& e, size_t operand) {
  return e.program[e.op.operands[operand]].type.shape;
}

// ---- broadcast ----

Types BroadcastTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const auto& dims = op.attributes.dims;
  const Shape& shape = op.attributes.shape;
  if (dims.size() != type.shape.size()) {
    return FieldError("dims", absl::StrCat("needs one axis per axis of the operand, ",
                                           type.shape.size(), ", has ", dims.size()));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool ascending = i == 0 || dims[i] > dims[i - 1];
    if (dims[i] < 0 || dims[i] >= static_cast<int64_t>(shape.size()) || !ascending ||
        shape[static_cast<size_t>(dims[i])] != type.shape[i]) {
      return FieldError("dims", absl::StrCat("axis ", dims[i], " does not fit: ", TypeText(type),
                                             " to [", absl::StrJoin(shape, ","), "]"));
    }
  }
  return std::vector<Type>{{type.element, shape}};
}

Array EvaluateBroadcast(const Evaluation& e) {
  const Shape& operand = ShapeOf(e, 0);
  const std::vector<int64_t> strides = StridesOf(operand);
  Array result = ZerosOf(e.result().type);
  for (size_t k = 0; k < SizeOf(result); ++k) {
    e.meter.Add(kMoveWork);
    const auto index = Unflatten(static_cast<int64_t>(k), e.result().type.shape);
    int64_t source = 0;
    for (size_t axis = 0; axis < operand.size(); ++axis) {
      source += index[static_cast<size_t>(e.op.attributes.dims[axis])] * strides[axis];
    }
    CopyElement(*e.operands[0], static_cast<size_t>(source), result, k);
  }
  return result;
}

// Sum over the axes that the broadcast added.
void BroadcastVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const std::vector<int64_t>& dims = r.op().attributes.dims;
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < static_cast<int64_t>(r.type().shape.size()); ++axis) {
    if (std::find(dims.begin(), dims.end(), axis) == dims.end()) axes.push_back(axis);
  }
  const Mask mask = r.MapMask(type.shape, [&] { return AxesOp(OpCode::kAny, axes); });
  Op sum = AxesOp(OpCode::kSum, axes);
  sum.operands = {r.Filled()};
  const ValueId cotangent = r.EmitUnder(mask, std::move(sum), type);
  r.To(0, {cotangent, mask});
}

// ---- reshape ----

Types ReshapeTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  if (ElementCount(op.attributes.shape) != ElementCount(type.shape)) {
    return FieldError("shape",
                      absl::StrCat("[", absl::StrJoin(op.attributes.shape, ","),
                                   "] has another number of elements than ", TypeText(type)));
  }
  return std::vector<Type>{{type.element, op.attributes.shape}};
}

// ---- slice takes a part out of the operand; pad puts the operand into a larger shape ----

Types WindowTypes(const Program& program, const Op& op, bool takes) {
  const Type& type = TypeOf(program, op, 0);
  const Shape& shape = op.attributes.shape;
  const Shape& large = takes ? type.shape : shape;
  const Shape& small = takes ? shape : type.shape;
  if (shape.size() != type.shape.size() || op.attributes.start.size() != type.shape.size()) {
    return FieldError("start", absl::StrCat("start and shape need ", type.shape.size(), " axes"));
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t start = op.attributes.start[i];
    if (start < 0 || start > large[i] || small[i] < 0 || small[i] > large[i] - start) {
      return FieldError("start", absl::StrCat("[", start, ", ", start, " + ", small[i],
                                              ") leaves axis ", i, " of length ", large[i]));
    }
  }
  return std::vector<Type>{{type.element, shape}};
}

// Element k of the window that begins at `start`, in the whole.
size_t InWindow(const Op& op, const Shape& window, const Shape& whole, size_t k) {
  const std::vector<int64_t> strides = StridesOf(whole);
  const std::vector<int64_t> index = Unflatten(static_cast<int64_t>(k), window);
  int64_t flat = 0;
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    flat += (op.attributes.start[axis] + index[axis]) * strides[axis];
  }
  return static_cast<size_t>(flat);
}

Array EvaluateSlice(const Evaluation& e) {
  Array result = ZerosOf(e.result().type);
  for (size_t k = 0; k < SizeOf(result); ++k) {
    e.meter.Add(kMoveWork);
    CopyElement(*e.operands[0], InWindow(e.op, e.result().type.shape, ShapeOf(e, 0), k), result, k);
  }
  return result;
}

Array EvaluatePad(const Evaluation& e) {
  Array result = ZerosOf(e.result().type);
  for (size_t k = 0; k < SizeOf(*e.operands[0]); ++k) {
    e.meter.Add(kMoveWork);
    CopyElement(*e.operands[0], k, result, InWindow(e.op, ShapeOf(e, 0), e.result().type.shape, k));
  }
  return result;
}

// The same window of the cotangent.
template <OpCode kCode>
void WindowVjp(VjpRule& r) {
  const Shape shape = r.OperandType(0).shape;
  r.MapSlot(0, [&] {
    Op window = ShapeOp(kCode, shape);
    window.attributes.start = r.op().attributes.start;
    return window;
  });
}

bool TakesAll(const Program& program, const Op& op) {
  return TypeOf(program, op, 0).shape == program[op.results[0]].type.shape;
}

// The cotangent outside the slice is absent: the mask says so even where g is present everywhere.
void SliceVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const bool all = r.OperandType(0).shape == r.type().shape;
  if (r.mask().presence == Presence::kAlways && !all) r.SpellMask();
  WindowVjp<OpCode::kPad>(r);
}

// ---- concat ----

Types ConcatTypes(const Program& program, const Op& op) {
  Type type = TypeOf(program, op, 0);
  if (op.attributes.axes.size() != 1 || op.attributes.axes[0] < 0 ||
      op.attributes.axes[0] >= static_cast<int64_t>(type.shape.size())) {
    return FieldError("axes", "concat needs one axis of its operands");
  }
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  for (size_t i = 1; i < op.operands.size(); ++i) {
    Type other = TypeOf(program, op, i);
    if (other.shape.size() != type.shape.size() || other.element != type.element) {
      return FieldError(absl::StrCat("operands[", i, "]"),
                        "concat needs equal element types and ranks");
    }
    const int64_t length = other.shape[axis];
    other.shape[axis] = type.shape[axis];
    if (other.shape != type.shape) {
      return FieldError(absl::StrCat("operands[", i, "]"),
                        absl::StrCat("concat operands differ outside axis ", axis));
    }
    type.shape[axis] += length;
  }
  return std::vector<Type>{type};
}

Array EvaluateConcat(const Evaluation& e) {
  const Type& type = e.result().type;
  const size_t axis = static_cast<size_t>(e.op.attributes.axes[0]);
  const std::vector<int64_t> strides = StridesOf(type.shape);
  Array result = ZerosOf(type);
  int64_t before = 0;  // length of the axis already taken by earlier operands
  for (size_t which = 0; which < e.operands.size(); ++which) {
    const Shape& shape = ShapeOf(e, which);
    for (size_t k = 0; k < SizeOf(*e.operands[which]); ++k) {
      e.meter.Add(kMoveWork);
      std::vector<int64_t> index = Unflatten(static_cast<int64_t>(k), shape);
      index[axis] += before;
      int64_t flat = 0;
      for (size_t a = 0; a < index.size(); ++a) flat += index[a] * strides[a];
      CopyElement(*e.operands[which], k, result, static_cast<size_t>(flat));
    }
    before += shape[axis];
  }
  return result;
}

void ConcatVjp(VjpRule& r) {
  const size_t axis = static_cast<size_t>(r.op().attributes.axes[0]);
  const size_t rank = r.type().shape.size();
  std::vector<int64_t> starts;
  int64_t offset = 0;
  for (size_t i = 0; i < r.op().operands.size(); ++i) {
    starts.push_back(offset);
    offset += r.OperandType(i).shape[axis];
  }
  for (size_t i = r.op().operands.size(); i-- > 0;) {
    if (!r.Wants(i)) continue;
    r.MapSlot(i, [&] {
      Op part = ShapeOp(OpCode::kSlice, r.OperandType(i).shape);
      part.attributes.start.assign(rank, 0);
      part.attributes.start[axis] = starts[i];
      return part;
    });
  }
}

}  // namespace

const OpInfo kBroadcast = Complete({
    .name = "broadcast",
    .doc = "a repeated: `shape` is that of the result; `dims` gives, for each axis of a, the axis "
           "of the result it becomes, ascending (none for a scalar).",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kShape, Attribute::kDims},
    .types = BroadcastTypes,
    .carries =
        [](const Carriage& c) { return ElementCount(c.program[c.op.results[0]].type.shape) > 0; },
    .vjp = BroadcastVjp,
    .evaluate = EvaluateBroadcast,
});

const OpInfo kReshape = Complete({
    .name = "reshape",
    .doc = "The same elements, row-major, in another `shape`.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kShape},
    .types = ReshapeTypes,
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (!r.Wants(0)) return;
          const Shape shape = r.OperandType(0).shape;
          r.MapSlot(0, [&] { return ShapeOp(OpCode::kReshape, shape); });
        },
    .evaluate = [](const Evaluation& e) { return *e.operands[0]; },
});

const OpInfo kSlice = Complete({
    .name = "slice",
    .doc = "The part of a that begins at `start` and has `shape`, per axis.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kStart, Attribute::kShape},
    .types = [](const Program& p, const Op& op) { return WindowTypes(p, op, true); },
    .passage = [](const Program& program, const Op& op,
                  size_t) { return TakesAll(program, op) ? Passage::kSame : Passage::kMasked; },
    .vjp = SliceVjp,
    .evaluate = EvaluateSlice,
});

const OpInfo kPad = Complete({
    .name = "pad",
    .doc = "Zeros (false) of `shape`, and a in it at `start`.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kStart, Attribute::kShape},
    .in_worlds = false,
    .types = [](const Program& p, const Op& op) { return WindowTypes(p, op, false); },
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) WindowVjp<OpCode::kSlice>(r);
        },
    .evaluate = EvaluatePad,
});

const OpInfo kConcat = Complete({
    .name = "concat",
    .doc = "The operands one after the other along the one axis of `axes`.",
    .op_class = OpClass::kShape,
    .operands = "a, ...",
    .attributes = {Attribute::kAxes},
    .types = ConcatTypes,
    .propagates = true,
    .vjp = ConcatVjp,
    .evaluate = EvaluateConcat,
});

}  // namespace simgrad::sim::op
