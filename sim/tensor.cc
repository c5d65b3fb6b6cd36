#include "sim/tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "precision/rounding.h"

namespace simgrad::sim {
namespace {

constexpr std::array<std::string_view, 11> kNames = {"f64", "f32", "bf16", "f16", "e4m3", "e5m2",
                                                     "i32", "i64", "bool", "u32", "u8"};

bool IsReal(DType dtype) { return dtype <= DType::kE5m2; }

// DType begins with the formats, in a table of its own because the two enums may part.
Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Format::kF32;
    case DType::kBf16:
      return Format::kBf16;
    case DType::kF16:
      return Format::kF16;
    case DType::kE4m3:
      return Format::kE4m3;
    case DType::kE5m2:
      return Format::kE5m2;
    default:
      return Format::kF64;
  }
}

uint64_t Load(const Tensor& tensor, int64_t i) {
  const size_t size = DTypeSize(tensor.dtype);
  uint64_t bits = 0;
  for (size_t k = 0; k < size; ++k) {
    bits |= uint64_t{tensor.bytes[static_cast<size_t>(i) * size + k]} << (8 * k);
  }
  return bits;
}

void Store(Tensor& tensor, int64_t i, uint64_t bits) {
  const size_t size = DTypeSize(tensor.dtype);
  for (size_t k = 0; k < size; ++k) {
    tensor.bytes[static_cast<size_t>(i) * size + k] = static_cast<uint8_t>(bits >> (8 * k));
  }
}

// Most numbers are normal f32, which are exact in f64 whatever the float environment of the thread.
bool IsNormalF32(uint32_t bits) {
  const uint32_t exponent = bits & 0x7F800000u;
  return exponent != 0 && exponent != 0x7F800000u;
}

// Toward zero, saturating, NaN to 0: the rule of `convert`.
int64_t Truncate(double value) {
  if (value != value) return 0;
  if (value >= 0x1p63) return INT64_MAX;
  if (value < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(value);
}

}  // namespace

std::string_view DTypeName(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

size_t DTypeSize(DType dtype) {
  constexpr std::array<size_t, 11> kSizes = {8, 4, 2, 2, 1, 1, 4, 8, 1, 4, 1};
  return kSizes[static_cast<size_t>(dtype)];
}

DType DTypeOf(Format format) {
  switch (format) {
    case Format::kF64:
      return DType::kF64;
    case Format::kF32:
      return DType::kF32;
    case Format::kBf16:
      return DType::kBf16;
    case Format::kF16:
      return DType::kF16;
    case Format::kE4m3:
      return DType::kE4m3;
    case Format::kE5m2:
      break;
  }
  return DType::kE5m2;
}

Tensor Tensor::Zeros(DType dtype, Shape shape) {
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<size_t>(tensor.count()) * DTypeSize(dtype));
  return tensor;
}

double Tensor::Get(int64_t i) const {
  if (dtype == DType::kF32) {
    uint32_t bits;
    std::memcpy(&bits, bytes.data() + static_cast<size_t>(i) * sizeof bits, sizeof bits);
    if (IsNormalF32(bits)) return static_cast<double>(std::bit_cast<float>(bits));
  }
  if (IsReal(dtype)) return precision::Decode(FormatOf(dtype), Load(*this, i));
  return static_cast<double>(GetInt(i));
}

int64_t Tensor::GetInt(int64_t i) const {
  switch (dtype) {
    case DType::kI32:
      return static_cast<int32_t>(static_cast<uint32_t>(Load(*this, i)));
    case DType::kI64:
    case DType::kU32:
    case DType::kU8:
      return static_cast<int64_t>(Load(*this, i));
    case DType::kBool:
      return Load(*this, i) != 0 ? 1 : 0;
    default:
      return Truncate(Get(i));
  }
}

void Tensor::Set(int64_t i, double value) {
  if (dtype == DType::kF32) {
    const float narrow = static_cast<float>(value);
    const uint32_t bits = std::bit_cast<uint32_t>(narrow);
    if (IsNormalF32(bits) && static_cast<double>(narrow) == value) {
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof bits, &bits, sizeof bits);
      return;
    }
  }
  if (IsReal(dtype)) {
    const Format format = FormatOf(dtype);
    Store(*this, i, precision::Encode(format, precision::RoundTo(format, value)));
  } else if (dtype == DType::kBool) {
    Store(*this, i, value != 0.0 ? 1 : 0);
  } else {
    SetInt(i, Truncate(value));
  }
}

void Tensor::SetInt(int64_t i, int64_t value) {
  if (IsReal(dtype)) {
    Set(i, static_cast<double>(value));
  } else if (dtype == DType::kBool) {
    Store(*this, i, value != 0 ? 1 : 0);
  } else if (dtype == DType::kI32) {
    Store(*this, i, static_cast<uint64_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)));
  } else if (dtype == DType::kU32) {
    Store(*this, i, static_cast<uint64_t>(std::clamp<int64_t>(value, 0, UINT32_MAX)));
  } else if (dtype == DType::kU8) {
    Store(*this, i, static_cast<uint64_t>(std::clamp<int64_t>(value, 0, UINT8_MAX)));
  } else {
    Store(*this, i, static_cast<uint64_t>(value));
  }
}

}  // namespace simgrad::sim
