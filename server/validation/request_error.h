// Statuses of a request that is refused: a field path, and a reason from the closed list of
// simgrad.v1.Reason as a payload.
//
// The field path is written as in the request: "spec.world.config[tol]", "spec.initial[0].tensor".
#pragma once

#include <string>

#include "absl/status/status.h"

namespace simgrad::server::validation {

// INVALID_ARGUMENT, reason INVALID_FIELD.
absl::Status InvalidField(const std::string& field, const std::string& message);

// INVALID_ARGUMENT, reason LIMIT_EXCEEDED.
absl::Status LimitExceeded(const std::string& field, const std::string& message);

// UNIMPLEMENTED, reason NOT_SUPPORTED.
absl::Status NotSupported(const std::string& field, const std::string& message);

// The same status with this reason.
absl::Status WithReason(absl::Status status, const std::string& reason);

// Empty where there is none.
std::string ReasonOf(const absl::Status& status);

}  // namespace simgrad::server::validation
