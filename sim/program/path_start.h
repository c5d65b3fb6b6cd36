// The decisions of `initial` in a path: they stand in the row of step 0.
//
// A state that no answer has, kPathStart, brings their bytes from `initial` to the first step; from
// then on it is 0, and so are their columns in all other rows.
// Errors: none. Cost: linear in the columns. Threads: pure.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_set>
#include <vector>

#include "sim/program/numerical_program.h"
#include "sim/program/pass_budget.h"
#include "sim/program/path_layout.h"

namespace simgrad::sim {

// Adds the state. `values`: of `columns`, in `initial`. Returns them as the beginning of the step
// knows them.
std::vector<ValueId> CarryPathStart(Program& program, const std::vector<PathColumn>& columns,
                                    const std::vector<ValueId>& values, PassBudget& budget);

// CarryPathStart of what an `initial` that follows a path would have decided: the first results
// `decided` of its operations.
std::vector<ValueId> RecordForcedStart(Program& program, const std::unordered_set<size_t>& decided,
                                       PassBudget& budget);

// The number of states before kPathStart; none: the program has no such state.
std::optional<size_t> StatesBeforePathStart(const Program& program);

}  // namespace simgrad::sim
