// Reads how the solves of a run's implicit derivatives ended, as its adjoint told (told.h).
#pragma once

#include <vector>

#include "sim/backend/executor.h"
#include "sim/engine.h"

namespace simgrad::sim {

// Solves of all instances by site, in the adjoint's order. Only after Run::FinishAdjoint.
std::vector<AdjointSolves> SolvesOf(const NumericalProgram& program, const Run& run);

}  // namespace simgrad::sim
