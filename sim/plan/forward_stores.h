// Replaces the load of a number that a register already holds by that register.
//
// Maths: a buffer keeps every number as it is, so the load gives the register's bits in every lane
//   that runs. A load sees the stores and loads at the same index that stand earlier in its block
//   or in one around it, unless a store may have changed the element since, or in a turn before.
// Cost: linear in the function times the depth of its blocks. Threads: pure.
#pragma once

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

void ForwardStores(Function& function);

}  // namespace simgrad::sim::plan
