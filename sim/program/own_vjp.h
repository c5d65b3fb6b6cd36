// Calls with a vjp of their own, differentiated: the author's region in the place of the reverse of
// the body.
//
// The region becomes part of the adjoint, with values of its own. It reads operands and results from the
// tape, and the cotangents of the real results, +0 where they are absent. What it yields is present
// where any of those is. Its operations run in role `adjoint`, or `objective` for a call of that
// role, but tests and events, which keep theirs; nothing that they decide is recorded.
// Cost: linear in the region, each time that it is written.
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Contributes the cotangents of the operands of `op`, an own_vjp.
void WriteOwnVjp(AdjointWriter& writer, const Op& op);

// Puts what the bodies gave in the place of the results of every own_vjp.
NumericalProgram RemoveOwnVjps(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
