// What an objective adds to a program: the two passes that come before its derivative.
//
// Errors: throw PassBudget::Ended. Cost: linear in the program. Threads: pure.
#pragma once

#include <string>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// The world with the stage cost of the objective `name` behind its step, and no other objective.
// `name` empty: none at all. A real export that no operation computes gets an identity of its own.
NumericalProgram ChooseObjective(Program world, const std::string& name, PassBudget& budget);

// Objective operations read what another role computed through one cast to role objective, put in
// front of the first that does; so its cotangents are summed in that role.
NumericalProgram BringIntoObjective(NumericalProgram numerical, PassBudget& budget);

}  // namespace simgrad::sim
