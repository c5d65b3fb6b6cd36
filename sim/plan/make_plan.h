// From a numerical program to its plan.
//
// Errors: none. Cost: linear in the program and in its literals. Threads: pure.
#pragma once

#include "sim/plan/plan.h"
#include "sim/plan/region_maker.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

Plan MakePlan(const NumericalProgram& numerical, Records records);

// What executors run: made, fused (fuse.h) and placed (place.h).
Plan PlacedPlan(const NumericalProgram& numerical, Records records);

}  // namespace simgrad::sim::plan
