// Gives every real value its format, and writes the casts between roles into the program.
//
// Maths: each operation computes in the format of its role, or of its site where the policy names
//   that. Operands in another format are cast. Inputs and literals are rounded once, from their
//   exact number to the format in which they are used. A cast stands in the region that defines its
//   operand, casts of inputs at the top, so that a loop does not repeat them. What enters a role with
//   a scale is a fake_quantize in the format that it has, and then a cast into the accumulator's. Source:
//   docs/numerics.md sections 2, 3 and 8.
// Errors: throws PassBudget::Ended. Cost: linear in what it writes. Threads: pure.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

NumericalProgram AssignPrecision(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
