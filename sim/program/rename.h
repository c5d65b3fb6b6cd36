// Replaces values that a region reads by others.
//
// Cost: n log n in the operands, which it reports as visits. Threads: pure.
#pragma once

#include <map>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

using Renaming = std::map<ValueId, ValueId>;

inline void Rename(const Renaming& names, std::vector<ValueId>& ids) {
  for (ValueId& id : ids) {
    if (const auto known = names.find(id); known != names.end()) id = known->second;
  }
}

// Operands and yields, of regions inside too.
inline void Rename(const Renaming& names, Region& region, PassBudget& budget) {
  for (Op& op : region.ops) {
    budget.Visit(1 + static_cast<int64_t>(op.operands.size()));
    Rename(names, op.operands);
    for (Region& nested : op.regions) Rename(names, nested, budget);
  }
  Rename(names, region.yields);
}

}  // namespace simgrad::sim
