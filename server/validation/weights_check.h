// Checks the weights of the instances in a sum over them, which rollouts and gradients share.
//
// Errors: INVALID_FIELD.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::validation {

using Weights = google::protobuf::RepeatedField<double>;

// Without the program.
absl::Status CheckWeights(const Weights& weights);

// `instances` as CheckInputs found.
absl::Status CheckWeightCount(const Weights& weights, int64_t instances);

}  // namespace simgrad::server::validation
