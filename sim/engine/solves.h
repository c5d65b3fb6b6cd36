// What the adjoint of a run told of the solves of its implicit derivatives.
#pragma once

#include <vector>

#include "sim/backend/executor.h"
#include "sim/engine.h"

namespace simgrad::sim {

// Of all instances, in the order in which the adjoint tells of the sites. Call after FinishAdjoint.
std::vector<AdjointSolves> SolvesOf(const NumericalProgram& program, const Run& run);

}  // namespace simgrad::sim
