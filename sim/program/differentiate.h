// Reverse-mode differentiation of a program: the adjoint is a program too.
//
// Maths: docs/numerics.md section 6. For every operation in reverse text order, the vjp of the
//   cotangent of its results; contributions to one value in descending order of use, the first
//   assigned. A cotangent travels with a mask of where it is present: select, max and min pass it
//   to the operand taken only, an absent cotangent is never multiplied. Kinks (which operand of max
//   was taken, the sign in abs) are read from comparisons that this pass adds to the primal: the
//   path is frozen.
// Loops: loop.h. Objective costs: values that an objective reads are first brought into role
// objective
//   by one cast each, so that their cotangents are summed there.
// Cost: n log n in what is written, times the depth of its loops: presence is decided first
//   (presence_plan.h), and every region is written once. Errors: throws PassBudget::Ended.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Puts a cast to role objective in front of the first objective operation that reads a real value
// computed in another role.
void BringIntoObjective(Program& program, Region& region, PassBudget& budget);

// Adjoint of `program` whose `step` already holds the stage cost (stage_cost, may be kNone);
// terminal is null where there is no terminal cost. Adds values, and kink comparisons to the primal
// regions.
Adjoint Differentiate(Program& program, ValueId stage_cost, Region* terminal,
                      const AdjointSpec& spec, PassBudget& budget);

}  // namespace simgrad::sim
