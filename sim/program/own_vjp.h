// Differentiates calls with a vjp of their own: the author's region stands where the reverse of the
// body would.
//
// The region becomes part of the adjoint, with values of its own. It reads operands and results
// from the tape, and the cotangents of the real results, which are +0 where they are absent. Its
// yields are present where any of those cotangents is. Its operations run in role `adjoint`, or in
// role `objective` if the call has that role. Tests and events keep their role; nothing that they
// decide is recorded.
// Cost: linear in the region, each time that it is written.
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Contributes the cotangents of the operands of `op`, an own_vjp.
void WriteOwnVjp(AdjointWriter& writer, const Op& op);

// Removes every own_vjp. The readers of its results read what its body gave.
NumericalProgram RemoveOwnVjps(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
