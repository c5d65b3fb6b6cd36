// How a request wants loops differentiated: by their last iterations, or as fixed points.
//
// unrolled, the default: by every iteration that ran.
// truncated: by the last n iterations. If more ran, the value before those n is a constant.
// implicit: the loop's value x is taken for the solution of x = G(x), linearised at the last
//   iteration that ran, with what it decided. w solves (1 + damping) w = g + J' w, and the values
//   that the iteration reads get their cotangents from w. The start value is disconnected, unless
//   no iteration ran.
#pragma once

#include "absl/status/status.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Checks the choices against the loops of the world.
// Errors: INVALID_ARGUMENT with "loops[i].FIELD".
absl::Status CheckChoices(const Program& world, const std::vector<LoopChoice>& loops);

// Notes in the loops of `step` which choice is theirs; ChoiceOf finds it.
Program MarkChoices(Program program, const std::vector<LoopChoice>& loops, PassBudget& budget);

// Returns the choice of a loop; null: every iteration.
const LoopChoice* ChoiceOf(const Op& loop, const std::vector<LoopChoice>& loops);

}  // namespace simgrad::sim
