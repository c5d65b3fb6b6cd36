// Removes copies and dead code. Does no algebra and no reordering, so no bit changes.
//
// Errors: the passes throw PassBudget::Ended. Cost: linear in the program. Threads: pure.
#pragma once

#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// A copy is a broadcast or reshape to the operand's own shape; what reads it reads the operand.
Program RemoveCopies(Program program, PassBudget& budget);

// Removes copies and dead code. An operation is dead where nothing
// uses its results, unless it decides: events, whiles, and loops around them. `keep` is used
// outside the regions, beyond yields and exports; kNone there is nothing.
Program Simplify(Program program, const std::vector<ValueId>& keep, PassBudget& budget);

// Removes dead code from the adjoint, and then from the primal what only that code read.
NumericalProgram RemoveUnread(NumericalProgram numerical, PassBudget& budget);

// A broadcast or reshape to the operand's own type.
bool IsCopy(const Program& program, const Op& op);

// Marks every value that `region` and the regions nested in it use.
void MarkUses(const Region& region, std::vector<bool>& live, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
