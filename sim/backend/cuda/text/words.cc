#include "sim/backend/cuda/text/words.h"

#include <string_view>

#include "sim/text.h"

namespace simgrad::sim::cuda {

std::string TypeText(plan::Carrier carrier) {
  constexpr std::string_view kNames[] = {"bool",   "int32_t",  "int64_t", "float",
                                         "double", "uint32_t", "uint32_t"};
  return std::string(kNames[static_cast<size_t>(carrier)]);
}

std::string TypeText(MemoryType memory_type) {
  constexpr std::string_view kNames[] = {"float",   "double", "int32_t",
                                         "int64_t", "bool",   "uint32_t"};
  return std::string(kNames[static_cast<size_t>(memory_type)]);
}

std::string FormatText(precision::Format format) {
  constexpr std::string_view kNames[] = {"kF64", "kF32", "kBf16", "kF16", "kE4m3", "kE5m2"};
  return Cat("Format::", kNames[static_cast<size_t>(format)]);
}

std::string HashText(uint64_t hash) { return Cat(hash, "u"); }

}  // namespace simgrad::sim::cuda
