// Removes what cannot be seen: copies and dead code. No algebra and no reordering, so no bit
// changes.
#pragma once

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Copies: broadcast and reshape to the operand's own shape. Dead: operations whose results nobody
// uses, except those that decide (events, whiles, and loops around them). `keep`: values used
// outside the regions, beyond yields and exports.
Program Simplify(Program program, const std::vector<ValueId>& keep, PassBudget& budget);

// A broadcast or reshape to the operand's own type.
bool IsCopy(const Program& program, const Op& op);

// Drops operations of `region` (and nested ones) whose results are neither used nor in `live`,
// which holds the values used elsewhere, indexed by value. Marks what the region uses in `live`.
void RemoveDeadCode(Region& region, std::vector<bool>& live, PassBudget& budget);

// Marks every value that `region` and the regions nested in it use.
void MarkUses(const Region& region, std::vector<bool>& live, PassBudget* budget = nullptr);

}  // namespace simgrad::sim
