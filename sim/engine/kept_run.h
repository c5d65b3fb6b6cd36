// A forward pass that is kept, so that it can be reversed later, many times
// (Engine::Reverse).
//
// Threads: immutable; any number of reversals may read it at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/backend/reference/certificate.h"
#include "sim/engine.h"
#include "sim/engine/gate.h"

namespace simgrad::sim {

// A state of a run, saved before `step`.
struct SavedState {
  int64_t step = 0;
  std::shared_ptr<const void> state;  // of Run::SaveState
};

struct KeptRun {
  Batch batch;         // without cotangents; its program has the adjoint that was kept for
  RunOptions options;  // without `stop`
  // Null: the executor keeps nothing, and every reversal runs forward again.
  std::shared_ptr<const ForwardCounts> counts;
  std::vector<SavedState> saved;    // ascending, the first at step 0
  std::shared_ptr<const void> end;  // after Finish
  Decided decided;
  std::map<size_t, ReplayStart> births;  // Births::starts
  // The results of the forward pass: health, halts, values, signatures, first events; without final
  // states.
  WorkResult forward;
  int64_t arithmetic_instances = 0;  // Work::arithmetic_instances
  int64_t chunk_steps = 1;           // as the forward pass came to choose them
  int64_t bytes = 0;                 // of all of this but the program, at most
};

// An upper bound of what it holds beside its program; `saved_bytes` of one saved state.
int64_t KeptBytes(const KeptRun& kept, int64_t saved_bytes);

// Work that begins where `kept` ended. The caller adds the gradient and the cotangents, and the
// program where the adjoint is another one, with as many bindings as that has inputs (an adjoint
// may add some, behind the others, for which nothing is sent). Cost: copies the inputs.
Work WorkOf(const KeptRun& kept);

// Whether the forward parts of two programs have the same text, so that they compute the same
// bits.
bool RunsForwardAlike(const NumericalProgram& one, const NumericalProgram& other);

}  // namespace simgrad::sim
