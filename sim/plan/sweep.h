// Deletes what nothing depends on: calls, loads, stores to locals that nothing reads, empty loops.
//
// Kept: stores to what outlives the function, records, frames, exits of loops, and all that they
//   read. Cost: linear in the function. Threads: pure.
#pragma once

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

void Sweep(Function& function);

}  // namespace simgrad::sim::plan
