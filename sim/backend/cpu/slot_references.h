// The slots that the instructions of a region read, those of nested loops included.
#pragma once

#include <cstdint>
#include <set>

#include "sim/backend/cpu/plan.h"

namespace simgrad::sim::cpu {

void CollectReads(const RegionPlan& region, std::set<int32_t>& slots);

}  // namespace simgrad::sim::cpu
