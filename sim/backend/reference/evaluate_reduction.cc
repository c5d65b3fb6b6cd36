// Reductions over axes of one value, in row-major order of the elements.
#include <algorithm>

#include "precision/reduction.h"
#include "precision/selection.h"
#include "sim/backend/reference/evaluate.h"

namespace simgrad::sim::reference {
namespace {

using enum OpCode;

// The first extreme; a NaN counts as the extreme, and the first NaN wins.
size_t ExtremeIndex(const std::vector<double>& x, bool largest) {
  size_t best = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != x[i]) return i;
    if (largest ? x[i] > x[best] : x[i] < x[best]) best = i;
  }
  return best;
}

double ReduceReals(const Op& op, Format format, const std::vector<double>& x) {
  const Attributes& a = op.attributes;
  if (op.code == kSum) {
    return precision::Sum(a.order, a.accumulator, format, x.data(), static_cast<int64_t>(x.size()));
  }
  if (op.code == kCumsum) {
    return precision::Sum(Order::kSequential, a.accumulator, format, x.data(),
                          static_cast<int64_t>(x.size()));
  }
  double extreme = x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    extreme = op.code == kReduceMax ? precision::Max(extreme, x[i]) : precision::Min(extreme, x[i]);
  }
  return precision::Canonical(extreme);
}

}  // namespace

std::vector<size_t> ReducedElements(const Program& program, const Op& op, size_t result,
                                    WorkMeter* meter) {
  const Shape& shape = program[op.operands[0]].type.shape;
  const std::vector<int64_t> strides = StridesOf(shape);
  const bool cumulative = op.code == kCumsum;
  // Unflatten `result` over the axes that the result keeps.
  int64_t rest = static_cast<int64_t>(result);
  int64_t base = 0;
  int64_t own = 0;  // cumsum: position on its axis
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (!cumulative && IsReduced(op, axis)) continue;
    const int64_t at = rest % shape[axis];
    rest /= shape[axis];
    if (cumulative && IsReduced(op, axis)) {
      own = at;
    } else {
      base += at * strides[axis];
    }
  }
  std::vector<size_t> elements = {static_cast<size_t>(base)};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!IsReduced(op, axis)) continue;
    std::vector<size_t> wider;
    for (size_t element : elements) {
      if (meter != nullptr) meter->Add(shape[axis]);
      for (int64_t at = 0; at < shape[axis]; ++at) {
        wider.push_back(element + static_cast<size_t>(at * strides[axis]));
      }
    }
    elements = std::move(wider);
  }
  if (cumulative) {
    if (op.attributes.reverse) {
      std::reverse(elements.begin(), elements.end());
      own = static_cast<int64_t>(elements.size()) - 1 - own;
    }
    elements.resize(static_cast<size_t>(own) + 1);
  }
  return elements;
}

Array EvaluateReduction(const Program& program, const Op& op, const Array& operand,
                        WorkMeter& meter) {
  const Value& value = program[op.results[0]];
  Array result = ZerosOf(value.type);
  for (size_t k = 0; k < SizeOf(result); ++k) {
    std::vector<double> reals;
    bool any = false;
    for (size_t i : ReducedElements(program, op, k, &meter)) {
      meter.Add(kElementWork);
      if (op.code == kAny) {
        any = any || operand.integer[i] != 0;
      } else {
        reals.push_back(operand.real[i]);
      }
    }
    if (op.code == kAny) {
      result.integer[k] = any ? 1 : 0;
    } else if (op.code == kArgmax || op.code == kArgmin) {
      result.integer[k] = static_cast<int64_t>(ExtremeIndex(reals, op.code == kArgmax));
    } else {
      result.real[k] = ReduceReals(op, *value.format, reals);
    }
  }
  return result;
}

}  // namespace simgrad::sim::reference
