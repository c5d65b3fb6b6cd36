// The dtypes and shapes of the tensors that executors answer with.
//
// Errors: none. Threads: pure.
#pragma once

#include <initializer_list>

#include "sim/tensor.h"

namespace simgrad::sim {

// Of a value as it is declared; `real` counts where it is real.
inline DType DTypeOfValue(const Value& value, Format real) {
  switch (value.type.element) {
    case ElementType::kReal:
      return DTypeOf(real);
    case ElementType::kI32:
      return DType::kI32;
    case ElementType::kI64:
      return DType::kI64;
    case ElementType::kBool:
      break;
  }
  return DType::kBool;
}

// The shape with axes before it.
inline Shape Prefixed(std::initializer_list<int64_t> prefix, const Shape& shape) {
  Shape prefixed(prefix);
  prefixed.insert(prefixed.end(), shape.begin(), shape.end());
  return prefixed;
}

}  // namespace simgrad::sim
