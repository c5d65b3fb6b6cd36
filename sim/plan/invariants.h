// Finds the loops of a step that do the same in every step.
//
// Maths: such a loop reads literals, tables, inputs that have no steps, and what other such loops
//   store; what it stores no other statement stores. Weights that are cast or transposed are the
//   usual case. An executor may keep what the loops stored from one step of a call to the next, all
//   of them or none. It must run them again in each step where they counted a range, and where an
//   input that they read was sent with a number per step (data may be).
// Cost: linear in the statements. Threads: pure.
#pragma once

#include <vector>

#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// Sets Statement::invariant. `is_steady`, by input: its numbers may be the same in all steps. The
// function has no pieces yet, and is given its places afterwards (place.h).
void MarkInvariants(const std::vector<bool>& is_steady, Function& function);
Plan MarkInvariants(Plan plan, const Program& program, WorkMeter& meter);  // throws StopRequested

}  // namespace simgrad::sim::plan
