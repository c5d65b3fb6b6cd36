// Windows that move: the part of an array that begins where i32 starts say.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/op/evaluate.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

using Places = Lowering::Places;
using Place = Lowering::Place;

// ---- Types ----

absl::Status CheckStarts(const Program& program, const Op& op, size_t starts, const Shape& large,
                         const Shape& small, const char* field) {
  const int64_t rank = static_cast<int64_t>(large.size());
  if (TypeOf(program, op, starts) != Type{ElementType::kI32, {rank}}) {
    return FieldError(absl::StrCat("operands[", starts, "]"),
                      absl::StrCat("starts must be i32[", rank, "], one per axis, are ",
                                   TypeText(TypeOf(program, op, starts))));
  }
  bool fits = small.size() == large.size();
  for (size_t k = 0; k < large.size() && fits; ++k) fits = small[k] >= 0 && small[k] <= large[k];
  if (!fits) {
    return FieldError(field, absl::StrCat("[", absl::StrJoin(small, ","), "] does not fit into [",
                                          absl::StrJoin(large, ","), "]"));
  }
  return absl::OkStatus();
}

Types DynamicSliceTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const Shape& shape = op.attributes.shape;
  if (absl::Status s = CheckStarts(program, op, 1, type.shape, shape, "shape"); !s.ok()) return s;
  return std::vector<Type>{{type.element, shape}};
}

Types UpdateTypes(const Program& program, const Op& op) {
  const Type& type = TypeOf(program, op, 0);
  const Type& part = TypeOf(program, op, 1);
  if (part.element != type.element) {
    return FieldError("operands[1]", absl::StrCat("update needs one element type, has ",
                                                  TypeText(type), " and ", TypeText(part)));
  }
  absl::Status s = CheckStarts(program, op, 2, type.shape, part.shape, "operands[1]");
  if (!s.ok()) return s;
  return std::vector<Type>{type};
}

// ---- Evaluation ----

// The start of a window of `small` in `large`, clamped so that the window lies inside.
std::vector<int64_t> StartsOf(const Array& starts, const Shape& large, const Shape& small) {
  std::vector<int64_t> at;
  for (size_t k = 0; k < large.size(); ++k) {
    at.push_back(std::clamp<int64_t>(starts.integer[k], 0, large[k] - small[k]));
  }
  return at;
}

// Calls with the numbers of each element in the large and in the small shape.
template <class F>
void EachInWindow(const Evaluation& e, const Array& starts, const Shape& large, const Shape& small,
                  const F& f) {
  const std::vector<int64_t> begin = StartsOf(starts, large, small);
  const std::vector<int64_t> strides = StridesOf(large);
  const std::vector<int64_t> own = StridesOf(small);
  const int64_t count = ElementCount(small);
  for (int64_t k = 0; k < count; ++k) {
    e.meter.Add(kMoveWork);
    int64_t flat = 0;
    for (size_t axis = 0; axis < large.size(); ++axis) {
      flat += (begin[axis] + k / own[axis] % small[axis]) * strides[axis];
    }
    f(static_cast<size_t>(flat), static_cast<size_t>(k));
  }
}

Array EvaluateDynamicSlice(const Evaluation& e) {
  Array result = ZerosOf(e.result().type);
  EachInWindow(e, *e.operands[1], TypeOf(e.program, e.op, 0).shape, e.result().type.shape,
               [&](size_t large, size_t k) { CopyElement(*e.operands[0], large, result, k); });
  return result;
}

Array EvaluateUpdate(const Evaluation& e) {
  Array result = *e.operands[0];
  EachInWindow(e, *e.operands[2], e.result().type.shape, TypeOf(e.program, e.op, 1).shape,
               [&](size_t large, size_t k) { CopyElement(*e.operands[1], k, result, large); });
  return result;
}

// ---- Lowering ----

// Writes the start of each axis of a window.
Places LowerStarts(Lowering& l, const Lowering::Memory& starts, const Shape& large,
                   const Shape& small) {
  Places at;
  for (size_t k = 0; k < large.size(); ++k) {
    if (large[k] == small[k]) {
      at.push_back({});
      continue;
    }
    const Lowering::Number start = l.Load(starts, {Place(static_cast<int64_t>(k))});
    at.push_back(Place::At(l.Clamped(start, Carrier::kI32, large[k] - small[k] + 1)));
  }
  return at;
}

Places Sum(const Places& a, const Places& b) {
  Places sum;
  for (size_t k = 0; k < a.size(); ++k) sum.push_back(a[k] + b[k]);
  return sum;
}

void LowerDynamicSlice(Lowering& l) {
  const auto to = l.Result();
  const auto from = l.Operand(0);
  const Places starts = LowerStarts(l, l.Operand(1), from.shape, to.shape);
  l.EachOf(to.shape, [&](const Places& at) { l.Store(to, at, l.Load(from, Sum(at, starts))); });
}

void LowerUpdate(Lowering& l) {
  const auto to = l.Result();
  l.Copy(to, l.Operand(0));
  const auto part = l.Operand(1);
  const Places starts = LowerStarts(l, l.Operand(2), to.shape, part.shape);
  l.EachOf(part.shape, [&](const Places& at) { l.Store(to, Sum(at, starts), l.Load(part, at)); });
}

// ---- Derivatives ----

void DynamicSliceVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const ValueId starts = r.X(1);
  const ValueId given = r.SpelledMask();
  const Mask mask = Mask::At(r.EmitMask(
      {.code = OpCode::kUpdate, .operands = {r.Nowhere(type.shape), given, starts}}, type.shape));
  Op update{.code = OpCode::kUpdate, .operands = {r.Splat(0.0, type), r.g(), starts}};
  r.To(0, {r.EmitUnder(mask, std::move(update), type), mask});
}

void UpdateVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(1)) return;
  const ValueId starts = r.X(2);
  if (r.Wants(1)) {
    const Type type = r.OperandType(1);
    const auto part = [&](ValueId from) {
      Op slice{.code = OpCode::kDynamicSlice, .operands = {from, starts}};
      slice.attributes.shape = type.shape;
      return slice;
    };
    Mask mask = r.mask();
    if (mask.presence == Presence::kMasked) {
      mask = Mask::At(r.EmitMask(part(mask.value), type.shape));
    }
    r.To(1, {r.EmitUnder(mask, part(r.g()), type), mask});
  }
  if (r.Wants(0)) {
    const ValueId given = r.SpelledMask();
    const ValueId window = r.Nowhere(r.OperandType(1).shape);
    const Mask mask = Mask::At(
        r.EmitMask({.code = OpCode::kUpdate, .operands = {given, window, starts}}, r.type().shape));
    r.To(0, {r.g(), mask});
  }
}

}  // namespace

const OpInfo kDynamicSlice = Complete({
    .name = "dynamic_slice",
    .doc = "The part of a of `shape` that begins at starts, an i32 per axis, moved inside where "
           "it would leave a.",
    .op_class = OpClass::kIndexing,
    .operands = "a, starts",
    .attributes = {Attribute::kShape},
    .types = DynamicSliceTypes,
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kMasked : Passage::kNone; },
    .vjp = DynamicSliceVjp,
    .evaluate = EvaluateDynamicSlice,
    .lower = LowerDynamicSlice,
});

const OpInfo kUpdate = Complete({
    .name = "update",
    .doc = "a with a part written over it that begins at starts, an i32 per axis, moved inside "
           "where it would leave a.",
    .op_class = OpClass::kIndexing,
    .operands = "a, part, starts",
    .types = UpdateTypes,
    .passage =
        [](const Program&, const Op&, size_t operand) {
          return operand == 0 ? Passage::kMasked : operand == 1 ? Passage::kSame : Passage::kNone;
        },
    .vjp = UpdateVjp,
    .evaluate = EvaluateUpdate,
    .lower = LowerUpdate,
});

}  // namespace simgrad::sim::op
