// From a numerical program to its plan.
//
// Errors: none; planning ends where `stop` says so. Cost: linear in the program and in its literals. Threads: pure.
#pragma once

#include "sim/plan/plan.h"
#include "sim/plan/region_maker.h"
#include "sim/program/numerical_program.h"
#include "sim/work_meter.h"

namespace simgrad::sim::plan {

// The meter is told of the work: it throws StopRequested. Without one, planning ends by itself.
Plan MakePlan(const NumericalProgram& numerical, Records records, WorkMeter& meter);
inline Plan MakePlan(const NumericalProgram& numerical, Records records) {
  WorkMeter meter;
  return MakePlan(numerical, records, meter);
}

// What executors run: made, fused (fuse.h) and placed (place.h). Throws StopRequested.
Plan PlacedPlan(const NumericalProgram& numerical, Records records,
                const WorkMeter::StopCallback& stop = {});

}  // namespace simgrad::sim::plan
