// Reads of a number that a register holds already become that register.
//
// Maths: a buffer keeps every number as it is, so the load gives the register's bits in every lane
//   that runs. Known at a load: stores and loads at the same index earlier in its block or in one
//   around it, unless a store may have changed the element since, or a turn before did.
// Cost: linear in the function times the depth of its blocks. Threads: pure.
#pragma once

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

void ForwardStores(Function& function);

}  // namespace simgrad::sim::plan
