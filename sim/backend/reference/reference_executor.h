// The oracle: one instance at a time, one number at a time, every rule as it is written.
//
// Maths: docs/numerics.md and docs/semantics.md. Cost: slow, by intent; memory is the tape
//   of one step, and for the adjoint that of a range of steps and instances.
// Errors: INVALID_ARGUMENT for a batch that does not fit its program.
// Threads: an executor is immutable; a Run computes on the calling thread, whatever
//   RunOptions::threads says.
#pragma once

#include <memory>

#include "sim/backend/executor.h"

namespace simgrad::sim {

std::unique_ptr<Executor> MakeReferenceExecutor();

}  // namespace simgrad::sim
