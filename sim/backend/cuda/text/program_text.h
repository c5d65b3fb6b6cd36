// The whole text of a program's kernels, printed from its plan.
//
// Maths, mappings, entry points: generate.h. Errors: RESOURCE_EXHAUSTED for a program with more
// inputs or fields than a kernel takes. Cost: linear in the plan. Threads: pure.
#pragma once

#include "absl/status/statusor.h"
#include "sim/backend/cuda/generate.h"

namespace simgrad::sim::cuda {

absl::StatusOr<GeneratedSource> PrintProgram(const NumericalProgram& program,
                                             const GenerateOptions& options);

}  // namespace simgrad::sim::cuda
