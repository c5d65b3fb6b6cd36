// Joins loops over elements, and keeps in registers what no longer crosses from one to another.
//
// Three passes over each function of a plan. Fusion: a parallel nest joins an earlier one of the
//   same extents if, buffer by buffer, what one writes and the other touches lies in disjoint rows
//   of the outermost counter; what stands between them moves before or stays behind, as its own
//   reads and writes allow. Forwarding: a load of what was stored or loaded at the same index in
//   the same or an enclosing block is that register. Sweeping: what no store to memory that outlives
//   the function, record, frame or exit of a loop depends on is deleted, locals included.
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
