// The type of a number at run time.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/program/program.h"

namespace simgrad::sim {

// f32 carries every real format but f64. A u8 lies in 32 bits, of which the upper 24 are 0.
enum class Carrier : uint8_t { kBool, kI32, kI64, kF32, kF64, kU32, kU8 };
std::string_view CarrierName(Carrier carrier);
Carrier CarrierOf(const Value& value);
constexpr bool IsReal(Carrier carrier) {
  return carrier == Carrier::kF32 || carrier == Carrier::kF64;
}
constexpr bool IsUnsigned(Carrier carrier) {
  return carrier == Carrier::kU32 || carrier == Carrier::kU8;
}
// Returns the suffix of the scalar functions on a value of this type: its format, or its carrier.
std::string_view SuffixOf(const Value& value);
// Returns the bytes of one element in memory. A bool is as wide as a float.
int64_t BytesOf(Carrier carrier);

}  // namespace simgrad::sim
