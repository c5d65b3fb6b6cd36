// Finds the loops of a step that do the same in every step.
//
// Maths: such a loop reads literals, tables, inputs that have no steps, and what other such loops
//   store; no statement that varies stores what it stores. Weights that are cast or transposed are
//   the usual case. An executor may keep what the loops stored from one step of a call to the next, all
//   of them or none. It must run them again in each step where they counted a range.
// Cost: linear in the statements. Threads: pure.
#pragma once

#include <vector>

#include "sim/plan/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// Sets Statement::invariant. `is_steady`, by input: its numbers are the same in all steps. The
// function has no pieces yet, and is given its places afterwards (place.h).
void MarkInvariants(const std::vector<bool>& is_steady, Function& function);
// `has_steps`, by input: it is sent with a number for each step; empty: controls and data may be.
// Throws StopRequested.
Plan MarkInvariants(Plan plan, const Program& program, const std::vector<bool>& has_steps,
                    WorkMeter& meter);

}  // namespace simgrad::sim::plan
