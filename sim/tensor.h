// A dense array with an element type: what callers send and receive.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

enum class DType : uint8_t { kF64, kF32, kBf16, kF16, kE4m3, kE5m2, kI32, kI64, kBool, kU32, kU8 };
std::string_view DTypeName(DType dtype);
size_t DTypeSize(DType dtype);  // bytes per element; bool: 1
DType DTypeOf(Format format);

// Little-endian, row-major. The code that makes a tensor keeps bytes.size() = count * DTypeSize.
struct Tensor {
  DType dtype = DType::kF64;
  Shape shape;
  std::vector<uint8_t> bytes;

  static Tensor Zeros(DType dtype, Shape shape);
  int64_t count() const { return ElementCount(shape); }
  // Exact for every real format, i32, u32, u8 and bool; an i64 beyond 2^53 is rounded (use GetInt).
  double Get(int64_t i) const;
  int64_t GetInt(int64_t i) const;
  void Set(int64_t i, double value);  // rounds to the dtype, nearest even, IEEE overflow
  void SetInt(int64_t i, int64_t value);
  bool operator==(const Tensor&) const = default;
};

}  // namespace simgrad::sim
