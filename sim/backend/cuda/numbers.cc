#include "sim/backend/cuda/numbers.h"

#include <type_traits>

#include "precision/selection.h"

namespace simgrad::sim::cuda {
namespace {

// Whether numbers of a carrier are stored in a tensor as they are.
bool IsOwn(Carrier carrier, DType dtype) {
  switch (carrier) {
    case Carrier::kF32:
      return dtype == DType::kF32;
    case Carrier::kF64:
      return dtype == DType::kF64;
    case Carrier::kI32:
      return dtype == DType::kI32;
    case Carrier::kU32:
      return dtype == DType::kU32;
    case Carrier::kI64:
      return dtype == DType::kI64;
    case Carrier::kBool:
      return dtype == DType::kBool;
  }
  return false;
}

}  // namespace

int64_t CarrierBytes(Carrier carrier) {
  switch (carrier) {
    case Carrier::kF64:
    case Carrier::kI64:
      return 8;
    case Carrier::kF32:
    case Carrier::kI32:
    case Carrier::kU32:
      return 4;
    case Carrier::kBool:
      break;
  }
  return 1;
}

void PutNumbers(Carrier carrier, const uint8_t* bytes, const Extent& extent, const Strides& from,
                const Strides& to, Tensor& tensor) {
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
  IsOwn(carrier, tensor.dtype) ? EachNumber(carrier, bytes, extent, from, to, own)
                               : EachNumber(carrier, bytes, extent, from, to, converted);
}

}  // namespace simgrad::sim::cuda
