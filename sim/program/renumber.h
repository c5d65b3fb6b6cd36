// The last tidying of a lowered program: nothing that nobody reads, values numbered in text order.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Removes operations whose results nobody reads, in the adjoint and then in the primal.
void RemoveUnread(NumericalProgram& numerical, PassBudget& budget);

// Sets Input::used; states always are.
void MarkUsedInputs(NumericalProgram& numerical, PassBudget& budget);

// Renumbers values densely: inputs, then definitions in text order. Drops entries that are defined
// nowhere.
void Renumber(NumericalProgram& numerical, PassBudget& budget);

}  // namespace simgrad::sim
