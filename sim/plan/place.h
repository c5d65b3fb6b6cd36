// Gives each local of a plan a place in the workspace. Locals that live in turn share a place.
//
// Maths: a local lives from the first statement that touches it to the last. A loop in between that
//   is entered and left while it lives counts as a whole. Locals of one element, which executors
//   keep in registers, need no place unless pieces share them. What invariant loops store lives
//   always (invariants.h).
// Units: bytes per lane; places are multiples of 8.
// Cost: n log n in the locals, linear in statements times the depth of their blocks. Threads: pure.
#pragma once

#include <utility>

#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// Sets Buffer::offset, Function::workspace and Function::kept.
void Place(Function& function);
Plan Place(Plan plan, WorkMeter& meter);  // throws StopRequested
inline Plan Place(Plan plan) {
  WorkMeter meter;
  return Place(std::move(plan), meter);
}

}  // namespace simgrad::sim::plan
