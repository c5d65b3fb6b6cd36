// The contents of one value: its elements in row-major order, in the carrier of its element type.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// Reals of every format are exact in a double; i32, i64 and bool (0 or 1) are kept in int64_t. The
// vector that does not belong to the element type stays empty.
struct Array {
  std::vector<double> real;
  std::vector<int64_t> integer;
  bool operator==(const Array&) const = default;

  // The number at element i, for a certificate: any type as a double.
  double AsDouble(size_t i) const {
    return real.empty() ? static_cast<double>(integer[i]) : real[i];
  }
};

inline Array ZerosOf(const Type& type) {
  Array array;
  const size_t n = static_cast<size_t>(ElementCount(type.shape));
  if (type.element == ElementType::kReal) {
    array.real.assign(n, 0.0);
  } else {
    array.integer.assign(n, 0);
  }
  return array;
}

inline void CopyElement(const Array& from, size_t i, Array& to, size_t k) {
  if (from.real.empty()) {
    to.integer[k] = from.integer[i];
  } else {
    to.real[k] = from.real[i];
  }
}

inline size_t SizeOf(const Array& array) { return array.real.size() + array.integer.size(); }

// The elements [index * count, (index + 1) * count): one element of a leading axis.
inline Array SliceOf(const Array& array, size_t index, size_t count) {
  const auto part = [&](const auto& from) {
    if (from.empty()) return from;
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(index * count);
    return std::decay_t<decltype(from)>(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  return {part(array.real), part(array.integer)};
}

inline void AppendTo(Array& array, const Array& part) {
  array.real.insert(array.real.end(), part.real.begin(), part.real.end());
  array.integer.insert(array.integer.end(), part.integer.begin(), part.integer.end());
}

}  // namespace simgrad::sim
