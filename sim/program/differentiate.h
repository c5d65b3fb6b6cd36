// Reverse-mode differentiation of a program: the adjoint is a program too.
//
// Maths: docs/numerics.md section 6. For every operation in reverse text order, the vjp of the
//   cotangent of its results; contributions to one value in descending order of use, the first
//   assigned. A cotangent travels with a mask of where it is present: select, max and min pass it
//   to the operand taken only, an absent cotangent is never multiplied. Kinks (which operand of max
//   was taken, the sign in abs) are read from comparisons that are added to the primal: the path is
//   frozen. Loops: loop.h.
// Errors: throws PassBudget::Ended. Cost: n log n in what is written, times the depth of its loops:
//   presence is decided first (presence_plan.h), and every region is written once. Threads: pure.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// The program with the kinks of its primal, and its adjoint; the objective is in it already
// (objective.h).
NumericalProgram Differentiate(NumericalProgram numerical, const AdjointSpec& spec,
                               PassBudget& budget);

}  // namespace simgrad::sim
