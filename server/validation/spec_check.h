// Checks what of a RolloutSpec can be judged without its program: ranges, enums, tensors, ids.
//
// Errors: INVALID_FIELD, LIMIT_EXCEEDED, NOT_SUPPORTED with the field path below `field`.
// Cost: linear in the message, and n log n in ids that do not ascend; nothing is allocated by a
// number in it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/validation/request_limits.h"
#include "sim/work_meter.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::validation {

// Throws sim::StopRequested.
absl::Status CheckSpec(const v1::RolloutSpec& spec, const RequestLimits& limits,
                       const std::string& field, sim::WorkMeter& meter);

// Refuses fields of the spec that a rollout has no use for.
absl::Status CheckRolloutMessage(const v1::RolloutRequest& request);

// A world names what runs; a built-in one may carry configuration.
absl::Status CheckWorld(const v1::World& world, const std::string& field);

absl::Status CheckPolicy(const v1::Policy& policy, const std::string& field);

// Every tensor of a list by itself, and that no name stands twice. Throws sim::StopRequested.
absl::Status CheckTensors(const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors,
                          const std::string& field, sim::WorkMeter& meter);

}  // namespace simgrad::server::validation
