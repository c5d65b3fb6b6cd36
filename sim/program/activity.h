// Which values a derivative can flow through: what depends on a state or on a wanted input.
#pragma once

#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {

// One flag per value of `program`. `terminal` may be null. Cost: linear in the program.
std::vector<bool> ActiveValues(const Program& program, const Region* terminal,
                               const AdjointSpec& spec, PassBudget& budget);

}  // namespace simgrad::sim
