// A status that names the field it is about.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace simgrad::sim {

// INVALID_ARGUMENT about `field` (a path like "step.ops[3].operands[0]" or "config.tol").
absl::Status FieldError(const std::string& field, const std::string& message);

// The same, because the field is above a limit and not because it is wrong.
absl::Status LimitError(const std::string& field, const std::string& message);
bool IsLimit(const absl::Status& status);

// The field of such a status; empty where there is none.
std::string FieldOf(const absl::Status& status);

// The same status, limit or not, with `prefix` put before its field: joined by a dot unless either
// is empty.
absl::Status InField(const std::string& prefix, const absl::Status& status);

// "a, b, c", for messages; "none" where there is none.
std::string NameList(const std::vector<std::string>& names);

}  // namespace simgrad::sim
