// Counts the work of a program's regions before any of it runs.
//
// Units: element-operations. An operation counts the elements of its largest operand or result, at
// least 1, and no less than its entry's `work`. Cost: linear in the region. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/program/program.h"

namespace simgrad::sim {

// Counts the operations of `region` once each, without those inside its loops.
int64_t OwnWork(const Program& program, const Region& region);

// One execution with every loop at its cap: the product of the caps around an operation (and of the
// elements of loops per element) times its own work, summed. A double, as products may be large.
double WorkAtCaps(const Program& program, const Region& region);

}  // namespace simgrad::sim
