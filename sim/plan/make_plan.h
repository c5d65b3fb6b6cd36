// Makes the plan of a numerical program.
//
// Errors: none; planning ends where `stop` says so.
// Cost: linear in the program and in its literals. Threads: pure.
#pragma once

#include <vector>

#include "sim/plan/plan.h"
#include "sim/plan/records.h"
#include "sim/program/numerical_program.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// The gradients that a reversed step gives to params declared weights: a number for each cell; or the
// factors, where they are outer products (outer_products.h).
enum class WeightGradients : uint8_t { kCells, kFactors };

// The meter counts the work and may throw StopRequested. Without a meter nothing stops planning.
Plan MakePlan(const NumericalProgram& numerical, Records records, WorkMeter& meter,
              WeightGradients weights = WeightGradients::kCells);
inline Plan MakePlan(const NumericalProgram& numerical, Records records) {
  WorkMeter meter;
  return MakePlan(numerical, records, meter);
}

// Returns the plan made, fused (fuse.h) and placed (place.h): what executors run. `has_steps`, by
// input: it is sent with a number for each step; empty: controls and data may be. Throws
// StopRequested.
Plan PlacedPlan(const NumericalProgram& numerical, Records records,
                const std::vector<bool>& has_steps, const WorkMeter::StopCallback& stop,
                WeightGradients weights = WeightGradients::kCells);
inline Plan PlacedPlan(const NumericalProgram& numerical, Records records,
                       const WorkMeter::StopCallback& stop = {}) {
  return PlacedPlan(numerical, records, {}, stop);
}

}  // namespace simgrad::sim::plan
