// Operations that move elements, and conversions between element types.
#include <algorithm>

#include "precision/arithmetic.h"
#include "sim/backend/reference/evaluate.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

// The row-major index of element `flat` of `shape`, per axis.
std::vector<int64_t> Unflatten(int64_t flat, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

// Of one element that is moved, in element-operations.
constexpr int64_t kMoveWork = 8;

void CopyElement(const Array& from, size_t i, Array& to, size_t k) {
  if (from.real.empty()) {
    to.integer[k] = from.integer[i];
  } else {
    to.real[k] = from.real[i];
  }
}

// Where element `index` of the result comes from in the operand of a broadcast; an axis of length 1
// repeats.
int64_t BroadcastSource(const Op& op, const Shape& operand, const std::vector<int64_t>& strides,
                        const std::vector<int64_t>& index) {
  int64_t source = 0;
  for (size_t axis = 0; axis < operand.size(); ++axis) {
    const int64_t at = index[static_cast<size_t>(op.attributes.dims[axis])];
    source += (operand[axis] == 1 ? 0 : at) * strides[axis];
  }
  return source;
}

Array Broadcast(const Op& op, const Array& from, const Shape& operand, const Type& type,
                WorkMeter& meter) {
  const std::vector<int64_t> strides = StridesOf(operand);
  Array result = ZerosOf(type);
  for (size_t k = 0; k < SizeOf(result); ++k) {
    meter.Add(kMoveWork);
    const auto index = Unflatten(static_cast<int64_t>(k), type.shape);
    CopyElement(from, static_cast<size_t>(BroadcastSource(op, operand, strides, index)), result, k);
  }
  return result;
}

// slice reads the window that begins at `start`; pad writes it.
size_t InWindow(const Op& op, const Shape& window, const Shape& whole, size_t k) {
  const std::vector<int64_t> strides = StridesOf(whole);
  const std::vector<int64_t> index = Unflatten(static_cast<int64_t>(k), window);
  int64_t flat = 0;
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    flat += (op.attributes.start[axis] + index[axis]) * strides[axis];
  }
  return static_cast<size_t>(flat);
}

int64_t ToInteger(double x, ElementType type) {
  if (x != x) return 0;
  if (type == ElementType::kBool) return x != 0.0 ? 1 : 0;
  const double low = type == ElementType::kI32 ? -0x1p31 : -0x1p63;
  if (x <= low) return type == ElementType::kI32 ? INT32_MIN : INT64_MIN;
  if (x >= -low) return type == ElementType::kI32 ? INT32_MAX : INT64_MAX;
  // Truncation keeps i32 in range: |x| < 2^31 truncates to at most 2^31 - 1.
  return static_cast<int64_t>(x);
}

// An i64 need not be a double: its two halves are, and their sum is rounded once.
double ToReal(int64_t n, Format format) {
  const int64_t low = n & 0xFFFFFFFF;
  return precision::Add(format, static_cast<double>(n - low), static_cast<double>(low));
}

}  // namespace

Array EvaluateShape(const Program& program, const Op& op, const Array& operand, WorkMeter& meter) {
  const Type& type = program[op.results[0]].type;
  const Shape& shape = program[op.operands[0]].type.shape;
  if (op.code == kReshape) return operand;
  if (op.code == kBroadcast) return Broadcast(op, operand, shape, type, meter);
  Array result = ZerosOf(type);
  if (op.code == kSlice) {
    for (size_t k = 0; k < SizeOf(result); ++k) {
      meter.Add(kMoveWork);
      CopyElement(operand, InWindow(op, type.shape, shape, k), result, k);
    }
  } else {
    for (size_t k = 0; k < SizeOf(operand); ++k) {
      meter.Add(kMoveWork);
      CopyElement(operand, k, result, InWindow(op, shape, type.shape, k));
    }
  }
  return result;
}

Array EvaluateConcat(const Program& program, const Op& op, Operands operands, WorkMeter& meter) {
  const Type& type = program[op.results[0]].type;
  const size_t axis = static_cast<size_t>(op.attributes.axes[0]);
  const std::vector<int64_t> strides = StridesOf(type.shape);
  Array result = ZerosOf(type);
  int64_t before = 0;  // length of the axis already taken by earlier operands
  for (size_t which = 0; which < operands.size(); ++which) {
    const Shape& shape = program[op.operands[which]].type.shape;
    for (size_t k = 0; k < SizeOf(*operands[which]); ++k) {
      meter.Add(kMoveWork);
      std::vector<int64_t> index = Unflatten(static_cast<int64_t>(k), shape);
      index[axis] += before;
      int64_t flat = 0;
      for (size_t a = 0; a < index.size(); ++a) flat += index[a] * strides[a];
      CopyElement(*operands[which], k, result, static_cast<size_t>(flat));
    }
    before += shape[axis];
  }
  return result;
}

Array EvaluateConversion(const Program& program, const Op& op, const Array& operand,
                         WorkMeter& meter) {
  const Value& value = program[op.results[0]];
  const ElementType target = value.type.element;
  const bool from_real = program[op.operands[0]].type.element == ElementType::kReal;
  if (target == ElementType::kReal && from_real) return operand;
  Array result = ZerosOf(value.type);
  for (size_t i = 0; i < SizeOf(result); ++i) {
    meter.Add(1);
    if (target == ElementType::kReal) {
      result.real[i] = ToReal(operand.integer[i], *value.format);
    } else if (from_real) {
      result.integer[i] = ToInteger(operand.real[i], target);
    } else {
      result.integer[i] = WrapTo(target, operand.integer[i]);
    }
  }
  return result;
}

}  // namespace simgrad::sim::reference
