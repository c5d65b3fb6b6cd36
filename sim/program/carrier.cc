#include "sim/program/carrier.h"

#include <array>

namespace simgrad::sim {

std::string_view CarrierName(Carrier carrier) {
  constexpr std::array<std::string_view, 7> kNames = {"bool", "i32", "i64", "f32",
                                                      "f64",  "u32", "u8"};
  return kNames[static_cast<size_t>(carrier)];
}

Carrier CarrierOf(const Value& value) {
  switch (value.type.element) {
    case ElementType::kBool:
      return Carrier::kBool;
    case ElementType::kI32:
      return Carrier::kI32;
    case ElementType::kI64:
      return Carrier::kI64;
    case ElementType::kU32:
      return Carrier::kU32;
    case ElementType::kU8:
      return Carrier::kU8;
    case ElementType::kReal:
      break;
  }
  return value.format.value_or(Format::kF64) == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
}

std::string_view SuffixOf(const Value& value) {
  if (value.type.element == ElementType::kReal) return precision::FormatName(*value.format);
  return CarrierName(CarrierOf(value));
}

int64_t BytesOf(Carrier carrier) {
  return carrier == Carrier::kF64 || carrier == Carrier::kI64 ? 8 : 4;
}

}  // namespace simgrad::sim
