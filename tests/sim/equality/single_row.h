// One instance of a piece of work, alone: nothing of it may depend on its neighbours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/sim/equality/observed.h"

namespace simgrad::sim::equality {

// The work of instance `row` with its id, its inputs and its cotangents.
Work AloneWork(const Work& work, int64_t row);

// What differs first between instance `row` of `all` and the only instance of `alone`: states,
// trajectory, health, path, first events, value, gradients, connected. For the same program.
std::optional<std::string> FirstDifferenceOfRow(const Work& work, const Observed& all, int64_t row,
                                                const Observed& alone);

}  // namespace simgrad::sim::equality
