// Reading and writing at indices along an axis: gather, scatter, and the sorting that makes indices.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "precision/arithmetic.h"
#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/op/evaluate.h"
#include "sim/op/lowering.h"
#include "sim/op/types.h"
#include "sim/op/vjp_rule.h"

namespace simgrad::sim::op {
namespace {

using Places = Lowering::Places;
using Place = Lowering::Place;
using Number = Lowering::Number;
using Memory = Lowering::Memory;

// The array as [outer, length, inner] around the axis that indices name, the moved part as
// [outer, count, inner].
struct Lines {
  int64_t outer = 1;
  int64_t length = 1;
  int64_t inner = 1;
  int64_t count = 1;
  bool clips = false;
};

Lines LinesOf(const Program& program, const Op& op) {
  Lines lines;
  const Shape& shape = TypeOf(program, op, 0).shape;
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  for (size_t k = 0; k < shape.size(); ++k) {
    (k < axis ? lines.outer : k == axis ? lines.length : lines.inner) *= shape[k];
  }
  lines.count = ElementCount(TypeOf(program, op, 1).shape);
  lines.clips = op.attributes.bounds == Bounds::kClip;
  return lines;
}

// Outside [0, length): the nearest place, or -1.
int64_t PlaceOf(const Lines& lines, int64_t index) {
  if (index >= 0 && index < lines.length) return index;
  return lines.clips ? std::clamp<int64_t>(index, 0, lines.length - 1) : -1;
}

// ---- Types ----

// The shape of what is moved: that of the indices in place of the axis.
absl::StatusOr<Shape> MovedShape(const Program& program, const Op& op, Bounds other) {
  if (absl::Status s = NeedsElement(program, op, 1, ElementType::kI32); !s.ok()) return s;
  const Shape& shape = TypeOf(program, op, 0).shape;
  const Shape& indices = TypeOf(program, op, 1).shape;
  const std::vector<int64_t>& axes = op.attributes.axes;
  if (axes.size() != 1 || axes[0] < 0 || axes[0] >= static_cast<int64_t>(shape.size())) {
    return FieldError("axes", NameOf(op) + " takes one axis of its first operand");
  }
  const Bounds bounds = op.attributes.bounds;
  if (bounds != Bounds::kClip && bounds != other) {
    return FieldError("bounds", "must be clip or " + std::string(BoundsName(other)));
  }
  const std::ptrdiff_t axis = static_cast<std::ptrdiff_t>(axes[0]);
  Shape moved(shape.begin(), shape.begin() + axis);
  moved.insert(moved.end(), indices.begin(), indices.end());
  moved.insert(moved.end(), shape.begin() + axis + 1, shape.end());
  if (bounds == Bounds::kClip && shape[static_cast<size_t>(axis)] == 0 && ElementCount(moved) > 0) {
    return FieldError("bounds", "an axis of length 0 has no place to clip to");
  }
  return moved;
}

Types GatherTypes(const Program& program, const Op& op) {
  const absl::StatusOr<Shape> moved = MovedShape(program, op, Bounds::kFill);
  if (!moved.ok()) return moved.status();
  const Type& type = TypeOf(program, op, 0);
  if (op.attributes.bounds == Bounds::kClip && !op.attributes.literal.empty()) {
    return FieldError("fill",
                      "bounds clip takes the nearest element and fills nothing; leave it out");
  }
  if (absl::Status s = CheckFill(op, type); !s.ok()) return s;
  return std::vector<Type>{{type.element, *moved}};
}

Types ScatterTypes(const Program& program, const Op& op) {
  const absl::StatusOr<Shape> moved = MovedShape(program, op, Bounds::kDrop);
  if (!moved.ok()) return moved.status();
  const Type& type = TypeOf(program, op, 0);
  if (TypeOf(program, op, 2) != Type{type.element, *moved}) {
    return FieldError("operands[2]", absl::StrCat("must be ", TypeText({type.element, *moved}),
                                                  ", is ", TypeText(TypeOf(program, op, 2))));
  }
  const Combine combine = op.attributes.combine;
  const bool orders =
      combine == Combine::kSet || combine == Combine::kMin || combine == Combine::kMax;
  if (!orders && combine != Combine::kAdd && combine != Combine::kMul) {
    return FieldError("combine", "must be set, add, mul, min or max");
  }
  if (!orders && type.element == ElementType::kBool) return NotDefinedOn(op, type);
  return std::vector<Type>{type};
}

Types WinnerTypes(const Program& program, const Op& op) {
  Types types = ScatterTypes(program, op);
  if (types.ok()) types->front().element = ElementType::kI32;
  return types;
}

Types ArgsortTypes(const Program& program, const Op& op) {
  const Shape& shape = TypeOf(program, op, 0).shape;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Type& type = TypeOf(program, op, k);
    if (type.element == ElementType::kBool) return NotDefinedOn(op, type);
    if (type.shape != shape) {
      return FieldError(absl::StrCat("operands[", k, "]"), "keys have one shape");
    }
  }
  const std::vector<int64_t>& axes = op.attributes.axes;
  if (axes.size() != 1 || axes[0] < 0 || axes[0] >= static_cast<int64_t>(shape.size())) {
    return FieldError("axes", "argsort takes one axis of its keys");
  }
  return std::vector<Type>{{ElementType::kI32, shape}};
}

// ---- Evaluation ----

// Zeros are equal, NaN is behind all numbers.
bool IsBefore(double a, double b) { return a < b || (a == a && b != b); }
bool IsBefore(const Array& key, size_t a, size_t b) {
  return key.real.empty() ? key.integer[a] < key.integer[b] : IsBefore(key.real[a], key.real[b]);
}

// The array as lines along the one axis of `axes`.
Lines LinesAlong(const Program& program, const Op& op) {
  Lines lines;
  const Shape& shape = TypeOf(program, op, 0).shape;
  for (size_t k = 0; k < shape.size(); ++k) {
    const bool is_axis = k == static_cast<size_t>(op.attributes.axes[0]);
    const bool in_front = static_cast<int64_t>(k) < op.attributes.axes[0];
    (is_axis ? lines.length : in_front ? lines.outer : lines.inner) *= shape[k];
  }
  return lines;
}

Array EvaluateArgsort(const Evaluation& e) {
  const Lines lines = LinesAlong(e.program, e.op);
  Array result = ZerosOf(e.result().type);
  for (int64_t outer = 0; outer < lines.outer; ++outer) {
    for (int64_t inner = 0; inner < lines.inner; ++inner) {
      const auto at = [&](int64_t k) {
        return static_cast<size_t>((outer * lines.length + k) * lines.inner + inner);
      };
      std::vector<int64_t> order;
      for (int64_t k = 0; k < lines.length; ++k) order.push_back(k);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        for (const Array* key : e.operands) {
          e.meter.Add(kElementWork);
          if (IsBefore(*key, at(a), at(b))) return true;
          if (IsBefore(*key, at(b), at(a))) return false;
        }
        return false;
      });
      for (int64_t k = 0; k < lines.length; ++k) {
        result.integer[at(k)] = order[static_cast<size_t>(k)];
      }
    }
  }
  return result;
}

Array EvaluateGather(const Evaluation& e) {
  const Lines lines = LinesOf(e.program, e.op);
  Array result = FilledWith(e.op, e.result());
  size_t k = 0;
  for (int64_t outer = 0; outer < lines.outer; ++outer) {
    for (int64_t i = 0; i < lines.count; ++i) {
      const int64_t place = PlaceOf(lines, e.operands[1]->integer[static_cast<size_t>(i)]);
      for (int64_t inner = 0; inner < lines.inner; ++inner, ++k) {
        e.meter.Add(kMoveWork);
        if (place < 0) continue;
        const int64_t from = (outer * lines.length + place) * lines.inner + inner;
        CopyElement(*e.operands[0], static_cast<size_t>(from), result, k);
      }
    }
  }
  return result;
}

// Calls to(element, update, i) in ascending order of updates; i: the number of the index.
template <class F>
void EachUpdate(const Evaluation& e, const F& to) {
  const Lines lines = LinesOf(e.program, e.op);
  size_t k = 0;
  for (int64_t outer = 0; outer < lines.outer; ++outer) {
    for (int64_t i = 0; i < lines.count; ++i) {
      const int64_t place = PlaceOf(lines, e.operands[1]->integer[static_cast<size_t>(i)]);
      for (int64_t inner = 0; inner < lines.inner; ++inner, ++k) {
        e.meter.Add(kMoveWork);
        if (place < 0) continue;
        to(static_cast<size_t>((outer * lines.length + place) * lines.inner + inner), k, i);
      }
    }
  }
}

double Combined(Combine combine, Format format, double a, double b) {
  if (combine == Combine::kAdd) return precision::Add(format, a, b);
  if (combine == Combine::kMul) return precision::Mul(format, a, b);
  if (combine == Combine::kMin) return precision::Min(a, b);
  if (combine == Combine::kMax) return precision::Max(a, b);
  return b;
}

int64_t Combined(Combine combine, int64_t a, int64_t b) {
  const uint64_t x = static_cast<uint64_t>(a);
  const uint64_t y = static_cast<uint64_t>(b);
  if (combine == Combine::kAdd) return static_cast<int64_t>(x + y);
  if (combine == Combine::kMul) return static_cast<int64_t>(x * y);
  if (combine == Combine::kMin) return std::min(a, b);
  if (combine == Combine::kMax) return std::max(a, b);
  return b;
}

Array EvaluateScatter(const Evaluation& e) {
  Array result = *e.operands[0];
  const Value& value = e.result();
  const Combine combine = e.op.attributes.combine;
  EachUpdate(e, [&](size_t to, size_t k, int64_t) {
    if (result.real.empty()) {
      result.integer[to] = WrapTo(value.type.element,
                                  Combined(combine, result.integer[to], e.operands[2]->integer[k]));
    } else {
      const double before = result.real[to];
      const double update = e.operands[2]->real[k];
      result.real[to] = Combined(combine, *value.format, before, update);
      if (e.arithmetic == nullptr) return;
      e.Begin(to);
      if (combine == Combine::kAdd) e.arithmetic->Added(before, update, result.real[to]);
      if (combine == Combine::kMul) {
        e.arithmetic->Multiplied(*value.format, before, update, result.real[to]);
      }
    }
  });
  return result;
}

// Ties, and a NaN on either side, go to the update, as with `min` and `max`.
bool Keeps(Combine combine, double before, double update) {
  return (combine == Combine::kMax && before > update) ||
         (combine == Combine::kMin && before < update);
}

Array EvaluateWinner(const Evaluation& e) {
  Array winner = ZerosOf(e.result().type);
  std::fill(winner.integer.begin(), winner.integer.end(), -1);
  Array now = *e.operands[0];
  const Combine combine = e.op.attributes.combine;
  EachUpdate(e, [&](size_t to, size_t k, int64_t i) {
    if (!Keeps(combine, now.AsDouble(to), e.operands[2]->AsDouble(k))) winner.integer[to] = i;
    if (now.real.empty()) {
      now.integer[to] = Combined(combine, now.integer[to], e.operands[2]->integer[k]);
    } else {
      now.real[to] = Combined(combine, Format::kF64, now.real[to], e.operands[2]->real[k]);
    }
  });
  return winner;
}

// The number before, and the smallest and largest update.
std::vector<double> ScatterMadeOf(const Program&, const Op&, Arrays operands, const Array&,
                                  size_t element) {
  std::vector<double> found = {operands[0]->AsDouble(element)};
  std::vector<size_t> all(SizeOf(*operands[2]));
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  AppendRange(*operands[2], all, found);
  return found;
}

// ---- Lowering ----

// One index: where it points, and whether it points inside (kNone: always).
struct Pointed {
  Number place = Lowering::kNone;
  Number inside = Lowering::kNone;
};
Pointed Follow(Lowering& l, const Lines& lines, Number index) {
  Pointed to;
  to.place = l.Clamped(index, Carrier::kI32, lines.length);
  if (!lines.clips) {
    const Number wide = l.ToI64(index, Carrier::kI32);
    to.inside = l.Call("eq_i64", Carrier::kBool, {wide, to.place});
  }
  return to;
}

void LowerGather(Lowering& l) {
  const Lines lines = LinesOf(l.program(), l.op());
  const Value& value = l.ResultValue();
  const auto to = l.Split(l.Result(), {lines.outer, lines.count, lines.inner});
  const Number fill = lines.clips ? Lowering::kNone : l.Real(FillOf(l.op(), value), value);
  if (ElementCount(value.type.shape) == 0) return;
  if (lines.length == 0) return l.Fill(to, fill);
  const auto from = l.Split(l.Operand(0), {lines.outer, lines.length, lines.inner});
  const auto indices = l.Flat(l.Operand(1));
  l.EachOf({lines.outer, lines.count, lines.inner}, [&](const Places& at) {
    const Pointed source = Follow(l, lines, l.Load(indices, {at[1]}));
    Number x = l.Load(from, {at[0], Place::At(source.place), at[2]});
    if (!lines.clips) x = l.Select(source.inside, x, fill, to.carrier);
    l.Store(to, at, x);
  });
}

// The updates one after the other: different lines side by side.
void LowerUpdates(
    Lowering& l, const Lines& lines,
    const std::function<void(Number place, Number inside, const Places& update)>& put) {
  if (lines.length == 0) return;
  const auto indices = l.Flat(l.Operand(1));
  l.EachOf({lines.outer, lines.inner}, [&](const Places& at) {
    l.Each(lines.count, false, [&](Number k) {
      const Pointed target = Follow(l, lines, l.Load(indices, {Place::Of(k)}));
      put(target.place, target.inside, {at[0], Place::Of(k), at[1]});
    });
  });
}

void LowerScatter(Lowering& l) {
  const Lines lines = LinesOf(l.program(), l.op());
  const auto result = l.Result();
  l.Copy(result, l.Operand(0));
  const auto to = l.Split(result, {lines.outer, lines.length, lines.inner});
  const auto updates = l.Split(l.Operand(2), {lines.outer, lines.count, lines.inner});
  const Combine combine = l.attributes().combine;
  const bool is_bool = to.carrier == Carrier::kBool;
  const std::string function = is_bool
                                   ? (combine == Combine::kMax ? "or_bool" : "and_bool")
                                   : FunctionOn(std::string(CombineName(combine)), l.ResultValue());
  LowerUpdates(l, lines, [&](Number place, Number inside, const Places& update) {
    const Places at = {update[0], Place::At(place), update[2]};
    const Number x = l.Load(updates, update);
    const Number before = l.Load(to, at);
    const Number after = combine == Combine::kSet ? x : l.Call(function, to.carrier, {before, x});
    l.Store(to, at,
            inside == Lowering::kNone ? after : l.Select(inside, after, before, to.carrier));
  });
}

void LowerWinner(Lowering& l) {
  const Lines lines = LinesOf(l.program(), l.op());
  const Value& value = l.OperandValue(0);
  const Shape shape = {lines.outer, lines.length, lines.inner};
  const auto winner = l.Split(l.Result(), shape);
  l.Fill(winner, l.Integer(Carrier::kI32, -1));
  const Combine combine = l.attributes().combine;
  const bool compares = combine != Combine::kSet;
  const Carrier carrier = CarrierOf(value);
  Lowering::Memory now;
  if (compares) {
    now = l.Local(carrier, shape, "now");
    l.Copy(now, l.Split(l.Operand(0), shape));
  }
  const auto updates = l.Split(l.Operand(2), {lines.outer, lines.count, lines.inner});
  LowerUpdates(l, lines, [&](Number place, Number inside, const Places& update) {
    const Places at = {update[0], Place::At(place), update[2]};
    Number loses = Lowering::kNone;
    if (compares) {
      const Number x = l.Load(updates, update);
      const Number before = l.Load(now, at);
      const bool is_bool = carrier == Carrier::kBool;
      const Number keeps =
          is_bool ? l.Call("and_bool", Carrier::kBool,
                           {combine == Combine::kMax ? before
                                                     : l.Call("not_bool", Carrier::kBool, {before}),
                            combine == Combine::kMax ? l.Call("not_bool", Carrier::kBool, {x}) : x})
                  : l.Call(FunctionOn(combine == Combine::kMax ? "gt" : "lt", value),
                           Carrier::kBool, {before, x});
      const std::string join = is_bool ? (combine == Combine::kMax ? "or_bool" : "and_bool")
                                       : FunctionOn(std::string(CombineName(combine)), value);
      const Number after = l.Call(join, carrier, {before, x});
      l.Store(now, at,
              inside == Lowering::kNone ? after : l.Select(inside, after, before, carrier));
      loses = keeps;
    }
    const Number before = l.Load(winner, at);
    Number next = l.Call("convert_i64_i32", Carrier::kI32, {update[1].counters[0].first});
    if (loses != Lowering::kNone) next = l.Select(loses, before, next, Carrier::kI32);
    if (inside != Lowering::kNone) next = l.Select(inside, next, before, Carrier::kI32);
    l.Store(winner, at, next);
  });
}

// Whether the keys of one place come before those of another; where they are equal, `otherwise`.
Number LowerBefore(Lowering& l, const std::vector<Memory>& keys, const Places& a, const Places& b,
                   Number otherwise) {
  const auto both = [&](Number x, Number y) { return l.Call("and_bool", Carrier::kBool, {x, y}); };
  const auto either = [&](Number x, Number y) { return l.Call("or_bool", Carrier::kBool, {x, y}); };
  const auto opposite = [&](Number x) { return l.Call("not_bool", Carrier::kBool, {x}); };
  Number before = otherwise;
  for (size_t k = keys.size(); k-- > 0;) {
    const Value& value = l.OperandValue(k);
    const Number x = l.Load(keys[k], a);
    const Number y = l.Load(keys[k], b);
    const auto less = [&](Number p, Number q) {
      const Number smaller = l.Call(FunctionOn("lt", value), Carrier::kBool, {p, q});
      if (value.type.element != ElementType::kReal) return smaller;
      const Number p_counts = l.Call(FunctionOn("eq", value), Carrier::kBool, {p, p});
      const Number q_counts = l.Call(FunctionOn("eq", value), Carrier::kBool, {q, q});
      return either(smaller, both(p_counts, opposite(q_counts)));
    };
    const Number first = less(x, y);
    const Number last = less(y, x);
    before = either(first, both(opposite(last), before));
  }
  return before;
}

// Each element goes to as many places as elements come before it.
void LowerArgsort(Lowering& l) {
  const Lines lines = LinesAlong(l.program(), l.op());
  const Shape shape = {lines.outer, lines.length, lines.inner};
  const auto to = l.Split(l.Result(), shape);
  std::vector<Memory> keys;
  for (size_t k = 0; k < l.op().operands.size(); ++k) keys.push_back(l.Split(l.Operand(k), shape));
  l.EachOf({lines.outer, lines.inner}, [&](const Places& line) {
    l.Each(lines.length, false, [&](Number i) {
      const Memory rank = l.Local(Carrier::kI64, {}, "rank");
      l.Store(rank, l.Integer(Carrier::kI64, 0));
      l.Each(lines.length, false, [&](Number j) {
        const Number earlier = l.Call("lt_i64", Carrier::kBool, {j, i});
        const Number before = LowerBefore(l, keys, {line[0], Place::Of(j), line[1]},
                                          {line[0], Place::Of(i), line[1]}, earlier);
        const Number one = l.Call("convert_bool_i64", Carrier::kI64, {before});
        l.Store(rank, l.Call("add_i64", Carrier::kI64, {l.Load(rank), one}));
      });
      const Number place = l.Clamped(l.Load(rank), Carrier::kI64, lines.length);
      l.Store(to, {line[0], Place::At(place), line[1]},
              l.Call("convert_i64_i32", Carrier::kI32, {i}));
    });
  });
}

// ---- Derivatives ----

// The operation on other operands, with the same indices, axis and bounds.
Op Along(const VjpRule& r, OpCode code, Bounds bounds, std::vector<ValueId> operands) {
  Op op{.code = code, .operands = std::move(operands)};
  op.attributes.axes = r.op().attributes.axes;
  op.attributes.bounds = r.op().attributes.bounds == Bounds::kClip ? Bounds::kClip : bounds;
  return op;
}

void GatherVjp(VjpRule& r) {
  if (!r.Wants(0)) return;
  const Type type = r.OperandType(0);
  const ValueId indices = r.X(1);
  const ValueId g = r.Filled();
  const ValueId given = r.SpelledMask();
  Op reached = Along(r, OpCode::kScatter, Bounds::kDrop, {r.Nowhere(type.shape), indices, given});
  reached.attributes.combine = Combine::kMax;
  const Mask mask = Mask::At(r.EmitMask(std::move(reached), type.shape));
  Op add = Along(r, OpCode::kScatter, Bounds::kDrop, {r.Splat(0.0, type), indices, g});
  add.attributes.combine = Combine::kAdd;
  r.To(0, {r.EmitUnder(mask, std::move(add), type), mask});
}

// The cotangent at each update, and where it is: nowhere for what was dropped.
Slot UpdateSlot(VjpRule& r, ValueId indices, ValueId cotangent, const Mask& at) {
  const Type type = r.OperandType(2);
  Mask mask = at;
  const bool drops = r.op().attributes.bounds == Bounds::kDrop;
  if (drops && mask.presence == Presence::kAlways) mask = Mask::At(r.SpelledMask());
  if (mask.presence == Presence::kMasked) {
    mask = Mask::At(
        r.EmitMask(Along(r, OpCode::kGather, Bounds::kFill, {mask.value, indices}), type.shape));
  }
  Op gather = Along(r, OpCode::kGather, Bounds::kFill, {cotangent, indices});
  return {r.EmitUnder(mask, std::move(gather), type), mask};
}

void SelectingVjp(VjpRule& r) {
  const Attributes& a = r.op().attributes;
  Op kink{.code = OpCode::kScatterWinner};
  kink.attributes.axes = a.axes;
  kink.attributes.bounds = a.bounds;
  kink.attributes.combine = a.combine;
  const Shape shape = r.type().shape;
  const Type integers{ElementType::kI32, shape};
  const ValueId winner = r.Kink(std::move(kink), integers);
  const ValueId indices = r.X(1);
  if (r.Wants(2)) {
    // The update won whose own number stands where it went.
    const Type type = r.OperandType(2);
    const Slot slot = UpdateSlot(r, indices, r.g(), r.mask());
    const Type moved{ElementType::kI32, type.shape};
    Op gather = Along(r, OpCode::kGather, Bounds::kFill, {winner, indices});
    gather.attributes.literal = {-1.0};
    const ValueId won = r.EmitPlain(std::move(gather), moved);
    const Shape own_shape = r.OperandType(1).shape;
    const int64_t count = ElementCount(own_shape);
    const ValueId line =
        r.EmitPlain({.code = OpCode::kIota, .attributes = {.axes = {0}, .shape = {count}}},
                    {ElementType::kI32, {count}});
    Op reshape = ShapeOp(OpCode::kReshape, own_shape);
    reshape.operands = {line};
    Op wide = ShapeOp(OpCode::kBroadcast, type.shape);
    wide.operands = {r.EmitPlain(std::move(reshape), {ElementType::kI32, own_shape})};
    for (size_t k = 0; k < own_shape.size(); ++k) {
      wide.attributes.dims.push_back(a.axes[0] + static_cast<int64_t>(k));
    }
    const ValueId own = r.EmitPlain(std::move(wide), moved);
    const ValueId taken = r.EmitMask({.code = OpCode::kEq, .operands = {won, own}}, type.shape);
    r.To(2, {slot.cotangent, r.And(slot.mask, taken)});
  }
  if (r.Wants(0)) {
    const ValueId none =
        r.EmitPlain({.code = OpCode::kLiteral, .attributes = {.literal = {-1.0}}}, integers);
    const ValueId kept = r.EmitMask({.code = OpCode::kEq, .operands = {winner, none}}, shape);
    r.To(0, {r.g(), r.And(kept)});
  }
}

void ScatterVjp(VjpRule& r) {
  if (!r.Wants(0) && !r.Wants(2)) return;
  const Combine combine = r.op().attributes.combine;
  if (combine != Combine::kAdd && combine != Combine::kMul) return SelectingVjp(r);
  const ValueId indices = r.X(1);
  const bool multiplies = combine == Combine::kMul;
  const Mask mask = r.mask();  // before UpdateSlot spells it
  if (r.Wants(2)) {
    const ValueId at = multiplies ? r.Mul(r.g(), r.X(0)) : r.g();
    r.To(2, UpdateSlot(r, indices, at, mask));
  }
  if (!r.Wants(0)) return;
  if (!multiplies) return r.To(0, {r.g(), mask});
  const ValueId one = r.Const(1.0);
  Op factors = Along(r, OpCode::kScatter, Bounds::kDrop, {one, indices, r.X(2)});
  factors.attributes.combine = Combine::kMul;
  const ValueId factor = r.EmitUnder(mask, std::move(factors), r.type());
  r.To(0, {r.Mul(r.g(), factor), mask});
}

Passage ScatterPassage(const Program&, const Op& op, size_t operand) {
  const Attributes& a = op.attributes;
  if (operand == 1) return Passage::kNone;
  if (a.combine != Combine::kAdd && a.combine != Combine::kMul) return Passage::kMasked;
  return operand == 2 && a.bounds == Bounds::kDrop ? Passage::kMasked : Passage::kSame;
}

}  // namespace

const OpInfo kGather = Complete({
    .name = "gather",
    .doc = "Elements of a along the one axis of `axes`, at i32 indices of any shape, which takes "
           "the place of the axis. Where an index is outside, `bounds` `clip` takes the nearest, "
           "`fill` gives `fill`, rounded and within the range of the format.",
    .op_class = OpClass::kIndexing,
    .operands = "a, indices",
    .attributes = {Attribute::kAxes, Attribute::kBounds, Attribute::kFill},
    .types = GatherTypes,
    .passage = [](const Program&, const Op&,
                  size_t operand) { return operand == 0 ? Passage::kMasked : Passage::kNone; },
    .vjp = GatherVjp,
    .evaluate = EvaluateGather,
    .lower = LowerGather,
});

const OpInfo kScatter = Complete({
    .name = "scatter",
    .doc = "a with updates brought in along the one axis of `axes`, at i32 indices, one after the "
           "other: `combine` is `set`, `add`, `mul`, `min` or `max`, each rounded. Where an index "
           "is outside, `bounds` `clip` takes the nearest place, `drop` none. The cotangent of "
           "`mul` is that of distinct indices.",
    .op_class = OpClass::kIndexing,
    .operands = "a, indices, updates",
    .attributes = {Attribute::kAxes, Attribute::kBounds, Attribute::kCombine},
    .types = ScatterTypes,
    .birth = Birth::kAccumulation,
    .made_of = ScatterMadeOf,
    .passage = ScatterPassage,
    .vjp = ScatterVjp,
    .evaluate = EvaluateScatter,
    .lower = LowerScatter,
});

const OpInfo kScatterWinner = Complete({
    .name = "scatter_winner",
    .doc = "Which update a `scatter` left at each place: the number of its index, or -1 where a "
           "stayed.",
    .op_class = OpClass::kIndexing,
    .operands = "a, indices, updates",
    .attributes = {Attribute::kAxes, Attribute::kBounds, Attribute::kCombine},
    .in_worlds = false,
    .result = Result::kI32,
    .types = WinnerTypes,
    .evaluate = EvaluateWinner,
    .lower = LowerWinner,
});

const OpInfo kArgsort = Complete({
    .name = "argsort",
    .doc = "The i32 places of the elements of keys in ascending order along the one axis of "
           "`axes`: equal ones of the first key by the next, then as they stand; zeros are equal, "
           "NaN comes last.",
    .op_class = OpClass::kIndexing,
    .operands = "keys, ...",
    .attributes = {Attribute::kAxes},
    .result = Result::kI32,
    .types = ArgsortTypes,
    .work =
        [](const Program& program, const Op& op) {
          const Shape& shape = TypeOf(program, op, 0).shape;
          const int64_t line = shape[static_cast<size_t>(op.attributes.axes[0])];
          return ElementCount(shape) * line * static_cast<int64_t>(op.operands.size());
        },
    .chooses = Chooses::kPlaces,
    .evaluate = EvaluateArgsort,
    .lower = LowerArgsort,
});

}  // namespace simgrad::sim::op
