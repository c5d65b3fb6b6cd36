#include "sim/program/path_lines.h"

#include <utility>

namespace simgrad::sim {
namespace {

using enum OpCode;

Type RowOf(ElementType element, int64_t length) { return {element, {length}}; }

}  // namespace

ValueId PathLines::NewValue(Type type) {
  const ValueId id = program_.AddValue(type);
  if (program_.IsReal(id)) {
    program_[id].format = Format::kF64;
    program_[id].watched = false;
  }
  budget_.WroteValue(program_[id]);
  return id;
}

ValueId PathLines::Do(OpCode code, std::vector<ValueId> operands, Type type,
                      Attributes attributes) {
  const ValueId result = NewValue(type);
  Op op{.code = code, .role = Role::kState, .operands = std::move(operands), .results = {result}};
  op.attributes = std::move(attributes);
  budget_.WroteOp(op);
  out_.push_back(std::move(op));
  return result;
}

ValueId PathLines::Number(int64_t number, Type type) {
  return Do(kLiteral, {}, type, {.literal = {static_cast<double>(number)}});
}

ValueId PathLines::Real(double number, Type type) {
  return Do(kLiteral, {}, type, {.literal = {number}});
}

ValueId PathLines::AsF64(ValueId id) {
  const Type type{ElementType::kReal, TypeOf(id).shape};
  if (TypeOf(id).element != ElementType::kReal) return Do(kConvert, {id}, type);
  if (program_[id].format == Format::kF64) return id;
  return Do(kCast, {id}, type,
            {.format = Format::kF64,
             .overflow = Overflow::kIeee,
             .rounding = CastRounding::kNearestEven});
}

// The difference of what `code` and `by` make of a and of b, which f64 holds exactly.
ValueId PathLines::Halves(OpCode code, ValueId a, ValueId b, int64_t by) {
  const Type type = TypeOf(a);
  const ValueId other = Number(by, type);
  const ValueId of_a = AsF64(Do(code, {a, other}, type));
  const ValueId of_b = AsF64(Do(code, {b, other}, type));
  return Do(kSub, {of_a, of_b}, {ElementType::kReal, type.shape});
}

ValueId PathLines::Difference(ValueId a, ValueId b) {
  const Type type{ElementType::kReal, TypeOf(a).shape};
  if (TypeOf(a).element == ElementType::kI64) {
    const ValueId upper = Halves(kShr, a, b, 32);
    const ValueId lower = Halves(kAnd, a, b, 0xFFFFFFFF);
    return Do(kAdd, {Do(kMul, {upper, Real(0x1p32, type)}, type), lower}, type);
  }
  const ValueId exact = AsF64(a);
  return Do(kSub, {exact, AsF64(b)}, type);
}

ValueId PathLines::Reshaped(ValueId id, const Shape& shape) {
  const Type type = TypeOf(id);
  if (type.shape == shape) return id;
  return Do(kReshape, {id}, {type.element, shape}, {.shape = shape});
}

ValueId PathLines::Converted(ValueId id, ElementType element) {
  const Type type = TypeOf(id);
  return type.element == element ? id : Do(kConvert, {id}, {element, type.shape});
}

ValueId PathLines::Part(ValueId row, int64_t first, int64_t length) {
  const Type type = RowOf(TypeOf(row).element, length);
  return Do(kSlice, {row}, type, {.start = {first}, .shape = type.shape});
}

ValueId PathLines::Joined(const std::vector<ValueId>& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  Type type = TypeOf(parts[0]);
  int64_t& length = type.shape[static_cast<size_t>(axis)];
  length = 0;
  for (ValueId id : parts) length += TypeOf(id).shape[static_cast<size_t>(axis)];
  return Do(kConcat, parts, type, {.axes = {axis}});
}

ValueId PathLines::Starts(ValueId index, size_t rank) {
  const ValueId first = Reshaped(index, {1});
  if (rank == 1) return first;
  const int64_t others = static_cast<int64_t>(rank) - 1;
  return Joined({first, Number(0, RowOf(ElementType::kI32, others))});
}

ValueId PathLines::At(ValueId array, ValueId index) {
  Type type = TypeOf(array);
  const ValueId starts = Starts(index, type.shape.size());
  type.shape[0] = 1;
  const ValueId part = Do(kDynamicSlice, {array, starts}, type, {.shape = type.shape});
  return Reshaped(part, Shape(type.shape.begin() + 1, type.shape.end()));
}

ValueId PathLines::With(ValueId array, ValueId element, ValueId index) {
  const Type type = TypeOf(array);
  Shape part = type.shape;
  part[0] = 1;
  return Do(kUpdate, {array, Reshaped(element, part), Starts(index, part.size())}, type);
}

ValueId PathLines::Bits(ValueId bools) {
  const int64_t count = TypeOf(bools).shape[0];
  const int64_t bytes = (count + 7) / 8;
  ValueId row = bools;
  if (count < 8 * bytes) {
    row = Joined({bools, Number(0, RowOf(ElementType::kBool, 8 * bytes - count))});
  }
  const Type eights{ElementType::kU8, {bytes, 8}};
  const ValueId ones = Reshaped(Converted(row, ElementType::kU8), eights.shape);
  const ValueId places = Do(kIota, {}, eights, {.axes = {1}, .shape = eights.shape});
  const ValueId moved = Do(kShl, {ones, places}, eights);
  return Do(kSum, {moved}, RowOf(ElementType::kU8, bytes), {.axes = {1}});
}

ValueId PathLines::Bools(ValueId bytes, int64_t count) {
  const int64_t length = TypeOf(bytes).shape[0];
  const Type eights{ElementType::kU8, {length, 8}};
  const ValueId wide = Do(kBroadcast, {bytes}, eights, {.shape = eights.shape, .dims = {0}});
  const ValueId places = Do(kIota, {}, eights, {.axes = {1}, .shape = eights.shape});
  const ValueId moved = Do(kShr, {wide, places}, eights);
  const ValueId ones = Do(kAnd, {moved, Number(1, eights)}, eights);
  const ValueId bools = Reshaped(Converted(ones, ElementType::kBool), {8 * length});
  return count == 8 * length ? bools : Part(bools, 0, count);
}

ValueId PathLines::Bytes(ValueId numbers, int32_t width) {
  const int64_t count = ElementCount(TypeOf(numbers).shape);
  const ValueId row = Reshaped(numbers, {count});
  if (width == 1) return Converted(row, ElementType::kU8);
  const Type type = TypeOf(row);
  std::vector<ValueId> columns;
  for (int32_t k = 0; k < width; ++k) {
    const ValueId moved = k == 0 ? row : Do(kShr, {row, Number(8 * k, type)}, type);
    columns.push_back(Reshaped(Converted(moved, ElementType::kU8), {count, 1}));
  }
  return Reshaped(Joined(columns, 1), {count * width});
}

ValueId PathLines::Numbers(ValueId bytes, Type type, int32_t width) {
  if (width == 1) return Reshaped(Converted(bytes, type.element), type.shape);
  const int64_t count = ElementCount(type.shape);
  const Type column{ElementType::kU8, {count, 1}};
  const Type row = RowOf(type.element, count);
  const ValueId table = Reshaped(bytes, {count, width});
  ValueId numbers = ValueId::kNone;
  for (int32_t k = 0; k < width; ++k) {
    const ValueId part = Do(kSlice, {table}, column, {.start = {0, k}, .shape = column.shape});
    ValueId number = Converted(Reshaped(part, {count}), type.element);
    if (k > 0) number = Do(kShl, {number, Number(8 * k, row)}, row);
    numbers = k == 0 ? number : Do(kOr, {numbers, number}, row);
  }
  return Reshaped(numbers, type.shape);
}

}  // namespace simgrad::sim
