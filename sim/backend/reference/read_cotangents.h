// Tells which of the cotangents that a caller may send are read by an operation or a gradient.
//
// The slots of a state that a step overwrites, or of an observable that nothing wanted makes, are
// not: what is sent for them changes no bit.
// Threads: pure.
#pragma once

#include <vector>

#include "sim/program/numerical_program.h"

namespace simgrad::sim::reference {

struct ReadCotangents {
  std::vector<bool> final_state, trajectory_state;  // by state
  std::vector<bool> trajectory_export;              // by export
};

// Cost: linear in the operations of the adjoint; of states that are handed on, at most their square.
ReadCotangents FindReadCotangents(const NumericalProgram& program);

}  // namespace simgrad::sim::reference
