#include "sim/program/step_work.h"

#include <algorithm>

#include "sim/op/op_info.h"

namespace simgrad::sim {
namespace {

int64_t LargestOf(const Program& program, const Op& op) {
  int64_t largest = 1;
  for (const std::vector<ValueId>* ids : {&op.operands, &op.results}) {
    for (ValueId id : *ids) {
      if (id != ValueId::kNone) largest = std::max(largest, ElementCount(program[id].type.shape));
    }
  }
  return largest;
}

// Products of matrices and factors take as many numbers for each element as a row has; argsort compares each
// element with its line.
int64_t WorkOf(const Program& program, const Op& op) {
  const int64_t largest = LargestOf(program, op);
  if (op.operands.empty()) return largest;
  const Shape& shape = program[op.operands[0]].type.shape;
  if (op.code == OpCode::kArgsort) {
    return largest * std::max<int64_t>(1, shape[static_cast<size_t>(op.attributes.axes[0])]);
  }
  const bool is_linear = InfoOf(op.code).op_class == OpClass::kLinear && !shape.empty();
  return is_linear ? largest * std::max<int64_t>(1, shape.back()) : largest;
}

}  // namespace

int64_t OwnWork(const Program& program, const Region& region) {
  int64_t work = 0;
  for (const Op& op : region.ops) work += WorkOf(program, op);
  return work;
}

double WorkAtCaps(const Program& program, const Region& region) {
  double work = static_cast<double>(OwnWork(program, region));
  for (const Op& op : region.ops) {
    double runs = 1;
    if (op.code == OpCode::kFor) runs = static_cast<double>(op.attributes.max_iter);
    if (op.code == OpCode::kWhile) {
      // The test runs once more than the body.
      runs = static_cast<double>(op.attributes.max_iter + 1) *
             static_cast<double>(std::max<int64_t>(op.attributes.elements, 1));
    }
    for (const Region& nested : op.regions) work += runs * WorkAtCaps(program, nested);
  }
  return work;
}

}  // namespace simgrad::sim
