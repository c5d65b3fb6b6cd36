// Writes the birth certificate of a non-finite value by replaying one instance.
//
// Maths: the birth is the first operation, in order of execution, whose result is not finite
//   although its operands are, or the number that came in non-finite. The certificate lists the
//   operands of that element; for a reduction, the smallest and the largest element it read.
// Errors: INVALID_ARGUMENT if the batch does not fit its program; CANCELLED if `stop` returned
//   true; nullopt if the instance is ok or the replay finds nothing (a checkpoint behind the
//   birth).
// Cost: a replay of one instance with the reference executor up to the birth: from `start` for the
//   phases input and forward; the whole trajectory for phase adjoint, with a copy of the states of
//   every step.
// Threads: pure.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/executor.h"

namespace simgrad::sim {

// The states of one instance at a step, as Run::State gives them: [1][shape] by state input; and
// the cost of the steps before it.
struct ReplayStart {
  int64_t step = 0;
  std::vector<Tensor> states;
  double cost = 0.0;
};

absl::StatusOr<std::optional<BirthCertificate>> WriteCertificate(const Batch& batch, int64_t row,
                                                                 const InstanceHealth& health,
                                                                 double seed_scale,
                                                                 const ReplayStart* start = nullptr,
                                                                 WorkMeter::StopCallback stop = {});

}  // namespace simgrad::sim
