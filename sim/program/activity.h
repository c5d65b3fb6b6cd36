// Finds the values that a derivative can flow through: those that depend on a state or on an input
// whose gradient is wanted.
#pragma once

#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// Returns one flag per value of `program`. `terminal` may be null. Cost: linear in the program.
std::vector<bool> ActiveValues(const Program& program, const Region* terminal,
                               const AdjointSpec& spec, PassBudget& budget);

}  // namespace simgrad::sim
