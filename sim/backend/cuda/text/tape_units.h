// The length of the tape that a region takes where its loops run to their caps.
//
// Units: of the tape (kTapeUnitBytes). Errors: none; a length beyond every tape stays at a bound.
// Cost: linear in the region. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/plan/tape_plan.h"
#include "sim/program/program.h"

namespace simgrad::sim::cuda {

int64_t TapeUnits(const plan::TapePlan& tape, const Region& region);

}  // namespace simgrad::sim::cuda
