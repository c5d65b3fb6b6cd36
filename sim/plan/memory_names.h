// Finds the buffers of a function that name the same memory.
#pragma once

#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// Returns, by buffer, the first buffer that names its memory.
std::vector<BufferId> MemoryNames(const Function& function);

}  // namespace simgrad::sim::plan
