#include "sim/program/axes.h"

#include <algorithm>

namespace simgrad::sim {

std::vector<int64_t> StridesOf(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

bool IsReduced(const Op& op, size_t axis) {
  const std::vector<int64_t>& axes = op.attributes.axes;
  return std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end();
}

}  // namespace simgrad::sim
