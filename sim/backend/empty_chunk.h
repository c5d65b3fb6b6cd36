// The start of a range of steps: every column, trajectory and site in its shape, all zero.
//
// Errors: none. Cost: allocates what is recorded. Threads: pure.
#pragma once

#include "sim/backend/executor.h"

namespace simgrad::sim {

// The chunk of steps [first, first + count). `stride`: of the sampled states.
ForwardChunk EmptyChunk(const Batch& batch, const RunOptions& options, int32_t stride,
                        int64_t first, int64_t count);

}  // namespace simgrad::sim
