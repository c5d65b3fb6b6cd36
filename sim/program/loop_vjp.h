// Reverses regions: straight lists of operations, and the loops in them (loop.h).
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Writes the adjoint of `primal` into the innermost scope of `writer`, whose slots hold what was
// contributed to the region's yields. The caller has called writer.DefinesPrimal(primal). Adds the
// kink comparisons that the adjoint reads to `primal`.
void ReverseRegion(AdjointWriter& writer, Region& primal);

}  // namespace simgrad::sim
