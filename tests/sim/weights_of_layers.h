// For tests of gradients of params declared `weights`: ids, numbers, policies, and where two gradients differ.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "precision/policy.h"
#include "sim/engine.h"

namespace simgrad::tests {

inline std::vector<double> Sines(int64_t count, double step) {
  std::vector<double> numbers;
  for (int64_t k = 0; k < count; ++k) numbers.push_back(0.8 * std::sin(step * double(k + 1)));
  return numbers;
}

inline precision::PolicySpec GradientsIn(precision::Format gradient, precision::Format accumulator,
                                         double loss_scale = 1.0) {
  precision::PolicySpec spec;
  spec.preset = gradient == precision::Format::kF64 ? "f64" : "f32";
  spec.roles = {{"gradient", {.format = gradient, .accumulator = accumulator}}};
  spec.loss_scale = loss_scale;
  return spec;
}

inline std::vector<uint64_t> Ids(uint64_t first, uint64_t count, uint64_t stride = 1) {
  std::vector<uint64_t> ids;
  for (uint64_t k = 0; k < count; ++k) ids.push_back(first + k * stride);
  return ids;
}

// Rows in an order that no id has.
inline std::vector<uint64_t> Unordered(const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> mixed;
  for (size_t k = 0; k < ids.size(); ++k) mixed.push_back(ids[k * 29 % ids.size()]);
  return mixed;
}

// Names the first difference of magnitudes or trees; empty where all bits are equal.
inline std::string GradientDifference(const sim::InputGradient& a, const sim::InputGradient& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  };
  if (a.magnitudes.zero != b.magnitudes.zero) return "instances without a gradient";
  if (!same(a.magnitudes.smallest, b.magnitudes.smallest)) return "the smallest magnitude";
  if (!same(a.magnitudes.largest, b.magnitudes.largest)) return "the largest magnitude";
  if (a.tree.size() != b.tree.size()) return "the number of nodes";
  for (size_t n = 0; n < a.tree.size(); ++n) {
    if (!(a.tree[n].block == b.tree[n].block)) return "a block";
    if (a.tree[n].values.size() != b.tree[n].values.size()) return "the width of a node";
    for (size_t e = 0; e < a.tree[n].values.size(); ++e) {
      if (!same(a.tree[n].values[e], b.tree[n].values[e])) return "a node";
    }
  }
  return "";
}

}  // namespace simgrad::tests
