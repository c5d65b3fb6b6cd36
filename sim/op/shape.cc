// Operations that move elements.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/rounding.h"
#include "sim/op/evaluate.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

// No axis is longer.
constexpr int64_t kLongestStep = int64_t{1} << 31;

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

// How far neighbours of the small shape lie apart in the large one, by axis.
std::vector<int64_t> Steps(const Op& op, size_t rank) {
  std::vector<int64_t> steps(rank, 1);
  const int64_t more = op.code == OpCode::kPad ? 1 : 0;  // places between, and the own one
  for (size_t i = 0; i < op.attributes.dims.size(); ++i) steps[i] = op.attributes.dims[i] + more;
  return steps;
}

absl::Status CheckSteps(const Op& op, const char* field, const std::vector<int64_t>& given,
                        int64_t least) {
  if (!given.empty() && given.size() != op.attributes.shape.size()) {
    return FieldError(field, absl::StrCat("needs one number per axis, ", op.attributes.shape.size(),
                                          ", has ", given.size()));
  }
  for (int64_t n : given) {
    if (n < least || n > kLongestStep) {
      return FieldError(field, absl::StrCat("must be from ", least, " to ", kLongestStep));
    }
  }
  return absl::OkStatus();
}

Types WindowTypes(const Program& program, const Op& op, bool takes) {
  const Type& type = TypeOf(program, op, 0);
  const Shape& shape = op.attributes.shape;
  const Shape& large = takes ? type.shape : shape;
  const Shape& small = takes ? shape : type.shape;
  if (shape.size() != type.shape.size() || op.attributes.start.size() != type.shape.size()) {
    return FieldError("start", absl::StrCat("start and shape need ", type.shape.size(), " axes"));
  }
  const absl::Status given = takes ? CheckSteps(op, "stride", op.attributes.dims, 1)
                                   : CheckSteps(op, "interior", op.attributes.dims, 0);
  if (!given.ok()) return given;
  const std::vector<int64_t> steps = Steps(op, shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t start = op.attributes.start[i];
    // A length that is refused anyway is not multiplied.
    const bool fits = small[i] >= 0 && small[i] <= large[i];
    const int64_t length = fits && small[i] > 0 ? (small[i] - 1) * steps[i] + 1 : small[i];
    if (start < 0 || start > large[i] || !fits || length > large[i] - start) {
      return FieldError("start", absl::StrCat("[", start, ", ", start, " + ", length,
                                              ") leaves axis ", i, " of length ", large[i]));
    }
  }
  return std::vector<Type>{{type.element, shape}};
}

// Element k of the window that begins at `start`, in the whole.
size_t InWindow(const Op& op, const Shape& window, const Shape& whole, size_t k) {
  const std::vector<int64_t> strides = StridesOf(whole);
  const std::vector<int64_t> steps = Steps(op, whole.size());
  const std::vector<int64_t> index = Unflatten(static_cast<int64_t>(k), window);
  int64_t flat = 0;
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    flat += (op.attributes.start[axis] + steps[axis] * index[axis]) * strides[axis];
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
  Array result = FilledWith(e.op, e.result());
  for (size_t k = 0; k < SizeOf(*e.operands[0]); ++k) {
    e.meter.Add(kMoveWork);
    CopyElement(*e.operands[0], k, result, InWindow(e.op, ShapeOf(e, 0), e.result().type.shape, k));
  }
  return result;
}

std::vector<Lowering::Along> WindowOf(const Op& op, size_t rank) {
  const std::vector<int64_t> steps = Steps(op, rank);
  std::vector<Lowering::Along> axes;
  for (size_t k = 0; k < rank; ++k) {
    axes.push_back({static_cast<int64_t>(k), op.attributes.start[k], steps[k]});
  }
  return axes;
}

void LowerPad(Lowering& l) {
  const auto to = l.Result();
  const Value& value = l.ResultValue();
  const double fill = FillOf(l.op(), value);
  const bool is_zero = fill == 0.0 && !std::signbit(fill);
  l.Fill(to, is_zero ? l.Integer(to.carrier, 0) : l.Real(fill, value));
  const auto from = l.Operand(0);
  l.Copy(l.Window(to, from.shape, WindowOf(l.op(), from.shape.size())), from);
}

// The same window of the cotangent.
template <OpCode kCode>
void WindowVjp(VjpRule& r) {
  const Shape shape = r.OperandType(0).shape;
  r.MapSlot(0, [&] {
    Op window = ShapeOp(kCode, shape);
    window.attributes.start = r.op().attributes.start;
    const int64_t more = kCode == OpCode::kPad ? -1 : 1;
    for (int64_t n : r.op().attributes.dims) window.attributes.dims.push_back(n + more);
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

// ---- transpose ----

Types TransposeTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const std::vector<int64_t>& dims = op.attributes.dims;
  std::vector<bool> taken(type.shape.size(), false);
  bool fits = dims.size() == type.shape.size();
  Shape shape;
  for (size_t k = 0; k < dims.size() && fits; ++k) {
    const bool inside = dims[k] >= 0 && dims[k] < static_cast<int64_t>(dims.size());
    fits = inside && !taken[static_cast<size_t>(dims[k])];
    if (!fits) break;
    taken[static_cast<size_t>(dims[k])] = true;
    shape.push_back(type.shape[static_cast<size_t>(dims[k])]);
  }
  if (!fits) {
    return FieldError("dims", absl::StrCat("must name each of ", type.shape.size(),
                                           " axes once, is [", absl::StrJoin(dims, ","), "]"));
  }
  return std::vector<Type>{{type.element, shape}};
}

// dims[k] becomes k.
std::vector<int64_t> Inverse(const std::vector<int64_t>& dims) {
  std::vector<int64_t> inverse(dims.size());
  for (size_t k = 0; k < dims.size(); ++k) {
    inverse[static_cast<size_t>(dims[k])] = static_cast<int64_t>(k);
  }
  return inverse;
}

Array EvaluateTranspose(const Evaluation& e) {
  const std::vector<int64_t> strides = StridesOf(ShapeOf(e, 0));
  Array result = ZerosOf(e.result().type);
  for (size_t k = 0; k < SizeOf(result); ++k) {
    e.meter.Add(kMoveWork);
    const auto index = Unflatten(static_cast<int64_t>(k), e.result().type.shape);
    int64_t source = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      source += index[axis] * strides[static_cast<size_t>(e.op.attributes.dims[axis])];
    }
    CopyElement(*e.operands[0], static_cast<size_t>(source), result, k);
  }
  return result;
}

void LowerTranspose(Lowering& l) {
  const std::vector<int64_t> inverse = Inverse(l.attributes().dims);
  std::vector<Lowering::Along> axes;
  for (int64_t axis : inverse) axes.push_back({axis, 0, 1});
  l.Rearrange(axes);
}

void TransposeVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  r.MapSlot(0, [&] {
    Op back{.code = OpCode::kTranspose};
    back.attributes.dims = Inverse(r.op().attributes.dims);
    return back;
  });
}

// ---- take: elements by their numbers, which are part of the program ----

Types TakeTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const int64_t count = ElementCount(type.shape);
  if (ElementCount(op.attributes.shape) != static_cast<int64_t>(op.attributes.start.size())) {
    return FieldError("indices", absl::StrCat("needs one per element of the result, ",
                                              ElementCount(op.attributes.shape), ", has ",
                                              op.attributes.start.size()));
  }
  for (int64_t index : op.attributes.start) {
    if (index < -1 || index >= count) {
      return FieldError("indices",
                        absl::StrCat(index, " is neither -1 nor an element of ", TypeText(type)));
    }
  }
  if (absl::Status s = CheckFill(op, type); !s.ok()) return s;
  return std::vector<Type>{{type.element, op.attributes.shape}};
}

Array EvaluateTake(const Evaluation& e) {
  Array result = FilledWith(e.op, e.result());
  for (size_t k = 0; k < SizeOf(result); ++k) {
    e.meter.Add(kMoveWork);
    const int64_t index = e.op.attributes.start[k];
    if (index >= 0) CopyElement(*e.operands[0], static_cast<size_t>(index), result, k);
  }
  return result;
}

void LowerTake(Lowering& l) {
  const Value& value = l.ResultValue();
  const std::vector<int64_t>& indices = l.attributes().start;
  const int64_t count = static_cast<int64_t>(indices.size());
  const auto to = l.Flat(l.Result());
  const bool fills = std::find(indices.begin(), indices.end(), -1) != indices.end();
  const bool empty = ElementCount(l.OperandValue(0).type.shape) == 0;
  const Lowering::Number fill = fills ? l.Real(FillOf(l.op(), value), value) : Lowering::kNone;
  if (empty) {
    if (count > 0) l.Fill(to, fill);
    return;
  }
  const auto from = l.Flat(l.Operand(0));
  const auto table = l.Table(indices);
  l.EachOf({count}, [&](const Lowering::Places& at) {
    const Lowering::Number index = l.Load(table, at);
    const Lowering::Number place =
        l.Call("max_i64", Carrier::kI64, {index, l.Integer(Carrier::kI64, 0)});
    Lowering::Number x = l.Load(from, {Lowering::Place::At(place)});
    if (fills) {
      const Lowering::Number nowhere =
          l.Call("lt_i64", Carrier::kBool, {index, l.Integer(Carrier::kI64, 0)});
      x = l.Select(nowhere, fill, x, to.carrier);
    }
    l.Store(to, at, x);
  });
}

// The cotangents of an element that was taken several times are added, ascending.
void TakeVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const int64_t count = ElementCount(r.type().shape);
  const Shape flat{ElementCount(type.shape)};
  const ValueId filled = r.Filled();
  if (r.mask().presence == Presence::kAlways) r.SpellMask();
  std::vector<double> places(r.op().attributes.start.begin(), r.op().attributes.start.end());
  Op literal{.code = OpCode::kLiteral, .attributes = {.literal = std::move(places)}};
  const bool none = count == 0;
  if (none) literal.attributes.literal = {0.0};
  const ValueId indices = r.EmitPlain(std::move(literal), {ElementType::kI32, {count}});
  const auto back = [&](ValueId from, const Type& of, bool is_mask, const Mask& mask) {
    const auto emit = [&](Op op, Shape shape) {
      const Type as{of.element, std::move(shape)};
      return is_mask ? r.EmitPlain(std::move(op), as) : r.EmitUnder(mask, std::move(op), as);
    };
    Op line = ShapeOp(OpCode::kReshape, {count});
    line.operands = {from};
    const ValueId updates = emit(std::move(line), {count});
    const ValueId zero = r.Splat(0.0, {of.element, flat});
    Op add{.code = OpCode::kScatter, .operands = {zero, indices, updates}};
    add.attributes.axes = {0};
    add.attributes.bounds = Bounds::kDrop;
    add.attributes.combine = is_mask ? Combine::kMax : Combine::kAdd;
    Op whole = ShapeOp(OpCode::kReshape, type.shape);
    whole.operands = {emit(std::move(add), flat)};
    return emit(std::move(whole), type.shape);
  };
  const Mask mask = Mask::At(back(r.mask().value, {ElementType::kBool, {}}, true, {}));
  r.To(0, {back(filled, {ElementType::kReal, {}}, false, mask), mask});
}

// ---- iota ----

Types IotaTypes(const Program& program, const Op& op) {
  const Types types = OfResult(program, op);
  if (!types.ok()) return types;
  const Type& type = types->front();
  if (!IsInteger(type.element)) return FieldError("results", "iota gives integers");
  if (type.shape != op.attributes.shape) return FieldError("shape", "is not that of the result");
  const std::vector<int64_t>& axes = op.attributes.axes;
  if (axes.size() != 1 || axes[0] < 0 || axes[0] >= static_cast<int64_t>(type.shape.size())) {
    return FieldError("axes", "iota takes one axis of its shape");
  }
  return types;
}

Array EvaluateIota(const Evaluation& e) {
  Array result = ZerosOf(e.result().type);
  const size_t axis = static_cast<size_t>(e.op.attributes.axes[0]);
  for (size_t k = 0; k < result.integer.size(); ++k) {
    e.meter.Add(kElementWork);
    const int64_t place = Unflatten(static_cast<int64_t>(k), e.result().type.shape)[axis];
    result.integer[k] = WrapTo(e.result().type.element, place);
  }
  return result;
}

void LowerIota(Lowering& l) {
  const auto to = l.Result();
  const size_t axis = static_cast<size_t>(l.attributes().axes[0]);
  l.EachOf(to.shape, [&](const Lowering::Places& at) {
    const auto& counters = at[axis].counters;
    const Lowering::Number place =
        counters.empty() ? l.Integer(Carrier::kI64, 0) : counters[0].first;
    l.Store(to, at, l.Call("convert_i64_" + l.NameOf(to.carrier), to.carrier, {place}));
  });
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

void LowerConcat(Lowering& l) {
  const size_t axis = static_cast<size_t>(l.attributes().axes[0]);
  const auto to = l.Result();
  int64_t start = 0;
  for (size_t k = 0; k < l.op().operands.size(); ++k) {
    const auto from = l.Operand(k);
    std::vector<Lowering::Along> axes(from.shape.size());
    axes[axis].start = start;
    l.Copy(l.Window(to, from.shape, axes), from);
    start += from.shape[axis];
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
    .scale = ScaleRule::kSame,
    .vjp = BroadcastVjp,
    .evaluate = EvaluateBroadcast,
    .lower =
        [](Lowering& l) {
          std::vector<Lowering::Along> axes;
          for (int64_t axis : l.attributes().dims) axes.push_back({axis, 0, 1});
          l.Rearrange(axes);
        },
});

const OpInfo kReshape = Complete({
    .name = "reshape",
    .doc = "The same elements, row-major, in another `shape`.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kShape},
    .types = ReshapeTypes,
    .propagates = true,
    .scale = ScaleRule::kSame,
    .vjp =
        [](VjpRule& r) {
          if (!r.Wants(0)) return;
          const Shape shape = r.OperandType(0).shape;
          r.MapSlot(0, [&] { return ShapeOp(OpCode::kReshape, shape); });
        },
    .evaluate = [](const Evaluation& e) { return *e.operands[0]; },
    .lower = [](Lowering& l) { l.Reshape(); },
});

const OpInfo kSlice = Complete({
    .name = "slice",
    .doc = "The part of a that begins at `start` and has `shape`, per axis; of `stride` n every "
           "n-th element.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kStart, Attribute::kShape, Attribute::kStride},
    .types = [](const Program& p, const Op& op) { return WindowTypes(p, op, true); },
    .scale = ScaleRule::kSame,
    .passage = [](const Program& program, const Op& op,
                  size_t) { return TakesAll(program, op) ? Passage::kSame : Passage::kMasked; },
    .vjp = SliceVjp,
    .evaluate = EvaluateSlice,
    .lower =
        [](Lowering& l) { l.Rearrange(WindowOf(l.op(), l.OperandValue(0).type.shape.size())); },
});

const OpInfo kPad = Complete({
    .name = "pad",
    .doc = "a in `shape`, from `start` on, with `interior` places between neighbours, per axis; "
           "`fill` everywhere else, rounded and within the range of the format.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kStart, Attribute::kShape, Attribute::kInterior, Attribute::kFill},
    .types =
        [](const Program& p, const Op& op) {
          const absl::Status fill = CheckFill(op, TypeOf(p, op, 0));
          return fill.ok() ? WindowTypes(p, op, false) : Types(fill);
        },
    .propagates = true,
    .vjp =
        [](VjpRule& r) {
          if (r.Wants(0)) WindowVjp<OpCode::kSlice>(r);
        },
    .evaluate = EvaluatePad,
    .lower = LowerPad,
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
    .lower = LowerConcat,
});

const OpInfo kTranspose = Complete({
    .name = "transpose",
    .doc = "a with its axes in another order: axis k of the result is axis `dims`[k] of a.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kDims},
    .types = TransposeTypes,
    .propagates = true,
    .vjp = TransposeVjp,
    .evaluate = EvaluateTranspose,
    .lower = LowerTranspose,
});

const OpInfo kTake = Complete({
    .name = "take",
    .doc = "Elements of a by their row-major numbers `indices`, in `shape`; -1 gives `fill`, "
           "rounded and within the range of the format.",
    .op_class = OpClass::kShape,
    .operands = "a",
    .attributes = {Attribute::kShape, Attribute::kIndices, Attribute::kFill},
    .types = TakeTypes,
    .passage = MaskedPassage,
    .vjp = TakeVjp,
    .evaluate = EvaluateTake,
    .lower = LowerTake,
});

const OpInfo kIota = Complete({
    .name = "iota",
    .doc = "Integers of `shape`: the position of each element along the one axis of `axes`.",
    .op_class = OpClass::kShape,
    .operands = "",
    .attributes = {Attribute::kAxes, Attribute::kShape},
    .result = Result::kDeclared,
    .types = IotaTypes,
    .evaluate = EvaluateIota,
    .lower = LowerIota,
});

}  // namespace simgrad::sim::op
