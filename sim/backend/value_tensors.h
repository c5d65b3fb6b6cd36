// The dtypes and shapes of the tensors that executors answer with.
//
// Errors: none. Threads: pure.
#pragma once

#include <initializer_list>
#include <utility>

#include "sim/tensor.h"

namespace simgrad::sim {

// The dtype in which a value of a lowered program leaves an executor.
inline DType DTypeOfValue(const Value& value) {
  switch (value.type.element) {
    case ElementType::kReal:
      return DTypeOf(value.format.value_or(Format::kF64));
    case ElementType::kI32:
      return DType::kI32;
    case ElementType::kI64:
      return DType::kI64;
    case ElementType::kU32:
      return DType::kU32;
    case ElementType::kU8:
      return DType::kU8;
    case ElementType::kBool:
      break;
  }
  return DType::kBool;
}

// Zeros for a value, with axes before its own.
inline Tensor ZerosFor(const Value& value, std::initializer_list<int64_t> prefix) {
  Shape shape(prefix);
  shape.insert(shape.end(), value.type.shape.begin(), value.type.shape.end());
  return Tensor::Zeros(DTypeOfValue(value), std::move(shape));
}

}  // namespace simgrad::sim
