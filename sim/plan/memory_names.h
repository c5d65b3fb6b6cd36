// Which buffers of a function name the same memory.
#pragma once

#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

// By buffer: the first that names its memory.
std::vector<BufferId> MemoryNames(const Function& function);

}  // namespace simgrad::sim::plan
