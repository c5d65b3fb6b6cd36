#include "sim/program/step_work.h"

#include <algorithm>

#include "sim/op/op_info.h"
#include "sim/program/loop.h"

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

int64_t WorkOf(const Program& program, const Op& op) {
  const OpInfo& info = InfoOf(op.code);
  const int64_t largest = LargestOf(program, op);
  return info.work == nullptr ? largest : std::max(largest, info.work(program, op));
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
    const double runs = ElementRunsAtCap(op);
    for (const Region& nested : op.regions) work += runs * WorkAtCaps(program, nested);
  }
  return work;
}

}  // namespace simgrad::sim
