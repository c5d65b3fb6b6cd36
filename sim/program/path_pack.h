// A path as one row of bytes, and the row as columns.
//
// Cost: linear in the columns. Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/path_layout.h"
#include "sim/program/path_lines.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Fills in `first` of each column, and `bytes`.
void PlaceColumns(PathLayout& layout);

// A u8 row of layout.bytes from the columns, and the columns from the row.
ValueId PackPath(PathLines& lines, const PathLayout& layout, const std::vector<ValueId>& columns);
std::vector<ValueId> UnpackPath(PathLines& lines, const PathLayout& layout, ValueId row);

// Adds an observable.
void AddExport(Program& program, const std::string& name, ValueId value, PassBudget& budget);

// Throws PassBudget::Ended, INVALID_ARGUMENT, where a terminal cost decides by reals.
void RefuseTerminalDecisions(const Program& program, PassBudget& budget);

}  // namespace simgrad::sim
