#include "sim/backend/cuda/run/numbers.h"

#include <type_traits>

#include "precision/selection.h"

namespace simgrad::sim::cuda {
namespace {

// Whether numbers of a memory type are stored in a tensor as they are.
bool IsOwn(MemoryType memory_type, DType dtype) {
  switch (memory_type) {
    case MemoryType::kF32:
      return dtype == DType::kF32;
    case MemoryType::kF64:
      return dtype == DType::kF64;
    case MemoryType::kI32:
      return dtype == DType::kI32;
    case MemoryType::kU32:
      return dtype == DType::kU32;
    case MemoryType::kI64:
      return dtype == DType::kI64;
    case MemoryType::kBool:
      return dtype == DType::kBool;
  }
  return false;
}

}  // namespace

int64_t MemoryTypeBytes(MemoryType memory_type) {
  switch (memory_type) {
    case MemoryType::kF64:
    case MemoryType::kI64:
      return 8;
    case MemoryType::kF32:
    case MemoryType::kI32:
    case MemoryType::kU32:
      return 4;
    case MemoryType::kBool:
      break;
  }
  return 1;
}

void PutNumbers(MemoryType memory_type, const uint8_t* bytes, const Extent& extent,
                const Strides& from, const Strides& to, Tensor& tensor) {
  uint8_t* const data = tensor.bytes.data();
  const auto own = [data](int64_t i, auto x) {
    if constexpr (std::is_floating_point_v<decltype(x)>) x = precision::Canonical(x);
    if constexpr (std::is_same_v<decltype(x), uint8_t>) x = x != 0 ? 1 : 0;
    std::memcpy(data + static_cast<size_t>(i) * sizeof(x), &x, sizeof(x));
  };
  const auto converted = [&tensor](int64_t i, auto x) {
    if constexpr (std::is_floating_point_v<decltype(x)>) {
      tensor.Set(i, static_cast<double>(x));
    } else {
      tensor.SetInt(i, x);
    }
  };
  IsOwn(memory_type, tensor.dtype) ? EachNumber(memory_type, bytes, extent, from, to, own)
                                   : EachNumber(memory_type, bytes, extent, from, to, converted);
}

}  // namespace simgrad::sim::cuda
