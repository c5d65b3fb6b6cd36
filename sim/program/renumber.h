// The last passes over a lowered program: mark the inputs that it reads, and number its values.
//
// Errors: throw PassBudget::Ended. Cost: linear in the program. Threads: pure.
#pragma once

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Sets Input::used: of every state, and of what a region reads or an export shows.
NumericalProgram MarkUsedInputs(NumericalProgram numerical, PassBudget& budget);

// Numbers values without gaps: inputs, then definitions in the order of the text. Entries of the
// table that nothing defines are dropped.
NumericalProgram Renumber(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
