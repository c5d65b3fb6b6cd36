// A status that names the field it is about.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace simgrad::sim {

// INVALID_ARGUMENT about `field` (a path like "step.ops[3].operands[0]" or "config.tol").
absl::Status FieldError(const std::string& field, const std::string& message);

// The field of such a status; empty where there is none.
std::string FieldOf(const absl::Status& status);

// The same status, with `prefix` put before its field: joined by a dot unless either is empty.
absl::Status InField(const std::string& prefix, const absl::Status& status);

}  // namespace simgrad::sim
