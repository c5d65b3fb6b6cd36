// Finds the values that may be infinite because a literal is.
//
// Maths: an infinite literal is meant: the bound of what has no bound, the cost before the first
//   guess. So an infinity that comes from one is no accident, and a value that may hold one counts as
//   non-finite only where it is NaN (docs/semantics.md). A value may be +Inf or -Inf if an operand
//   may be infinite at all; a minimum is +Inf only if both operands are, a maximum -Inf. A loop hands
//   on what it carries. What a state holds from one step to the next, what is sent, and what
//   overflows are not looked through: infinities there count.
// Errors: throws PassBudget::Ended if the budget is told to stop. Cost: linear in the program.
// Threads: pure.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Sets NumericalProgram::infinite.
NumericalProgram MarkInfinities(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
