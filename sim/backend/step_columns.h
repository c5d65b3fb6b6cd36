// The columns of columns.h as the data of sim/diagnostics.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <span>

#include "sim/backend/columns.h"
#include "sim/diagnostics/diagnostics.h"

namespace simgrad::sim {

// `sorted_ids`: the instance ids, ascending; ExtremeMargin::key counts in them.
TerminationStep TerminationOf(const TerminationColumn& column,
                              std::span<const uint64_t> sorted_ids);
EventStep EventOf(const EventColumn& column, std::span<const uint64_t> sorted_ids);
StateRange RangeOf(const StateColumn& column);
BackwardStep BackwardOf(const BackwardColumn& column);
RangeCounts CountsOf(const RangeColumn& column);
// Adds columns, [sampled step][event], to `to`, [event][sampled step], from its step `first` on.
void MergeEventMargins(std::span<const MarginColumn> columns, size_t first,
                       std::vector<std::vector<MarginHistogram>>& to);
// Adds the columns of the sites.
void MergeAdditions(std::span<const AdditionColumn> columns, std::vector<AdditionCounts>& to);

}  // namespace simgrad::sim
