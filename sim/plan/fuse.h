// Joins loops over elements, and keeps in registers what no longer crosses from one to another.
//
// Three passes over each function of a plan:
//   Fusion: a parallel nest joins an earlier one of the same extents if, buffer by buffer, what one
//     writes and the other touches lies in disjoint rows of the outermost counter. Statements
//     between the two move before or stay behind, as their own reads and writes allow.
//   Forwarding: a load becomes the register that was stored or loaded at the same index, in the
//     same or an enclosing block.
//   Sweeping: a statement is deleted, locals included, unless something that stays depends on it: a
//     store to memory that outlives the function, a record, a frame, or the exit of a loop.
// Maths: no operation changes, and no sum is reassociated. Records move with their nest; they
//   commute (sim/backend/columns.h: sums and extremes; signatures are sums).
// Cost: linear in the plan times the depth of its blocks. Threads: pure.
#pragma once

#include <utility>

#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

Plan Fuse(Plan plan, WorkMeter& meter);  // throws StopRequested
inline Plan Fuse(Plan plan) {
  WorkMeter meter;
  return Fuse(std::move(plan), meter);
}

}  // namespace simgrad::sim::plan
