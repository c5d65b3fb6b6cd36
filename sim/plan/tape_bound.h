// Bounds the tapes of one adjoint by those of another one of the same forward program.
//
// Maths: the tape of a step is a sum, over the regions that ran, of runs times the bytes of a
//   frame. The runs are those of the forward program, so the largest ratio of two frames of one
//   region bounds the ratio of the tapes.
// Cost: linear in the programs. Threads: pure.
#pragma once

#include <optional>

#include "sim/program/numerical_program.h"

namespace simgrad::sim::plan {

// The tape of a step under `to` takes at most so many times the bytes that it takes under `from`.
// Both have an adjoint, and steps with the same text. Nothing if a region has frames under `to`
// alone: then how often it ran was not counted.
std::optional<double> TapeBound(const NumericalProgram& from, const NumericalProgram& to);

}  // namespace simgrad::sim::plan
