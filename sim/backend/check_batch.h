// Whether a batch fits its program: sizes of bindings and cotangents, ids, required inputs.
//
// Errors: INVALID_ARGUMENT that names the input; CANCELLED if `stop` returned true.
// Cost: O(instances log instances) for the ids.
#pragma once

#include "absl/status/status.h"
#include "sim/backend/executor.h"

namespace simgrad::sim {

absl::Status CheckBatch(const Batch& batch, const WorkMeter::StopCallback& stop);
// Whether there is a last step where the terminal cost reads its exports (docs/adr/0009); the field
// is `steps`. Part of CheckBatch.
absl::Status CheckSteps(const Batch& batch);

// Whether the caller sent something for input i.
inline bool IsBound(const Batch& batch, size_t input) {
  return !batch.inputs[input].tensor.bytes.empty();
}

}  // namespace simgrad::sim
