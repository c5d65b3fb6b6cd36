// Adds an objective to a program, in the two passes that come before differentiation.
//
// Errors: throw PassBudget::Ended. Cost: linear in the program. Threads: pure.
#pragma once

#include <string>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Appends the stage cost of the objective `name` to the step, and drops every other objective; with
// an empty `name`, all of them. A real export that no operation computes gets an identity cast.
NumericalProgram ChooseObjective(Program world, const std::string& name, PassBudget& budget);

// Casts every value of another role that objective operations read to role objective, once, in the region
// that defines it and before its first reader, which may lie in a loop or branch there. Its cotangents are
// then summed in that role.
NumericalProgram BringIntoObjective(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
