// Checks of RolloutSpec.path and DescribeProgramRequest.path: by itself, and against the program that it is for.
//
// Errors: INVALID_FIELD, LIMIT_EXCEEDED with the field path below `field`.
// Cost: linear in the message.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/validation/request_limits.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::validation {

absl::Status CheckPathUse(v1::PathUse use, const std::string& field);
absl::Status CheckPath(const v1::PathOptions& path, const std::string& field);

// The shape of a path of the program that runs; a run without a path needs no check.
struct PathShape {
  std::string structure;
  int64_t instances = 0;
  int64_t steps = 0;
  int64_t bytes = 0;        // of one instance in one step
  bool of_initial = false;  // `initial` follows the row of step 0
};
absl::Status CheckPathFits(const v1::PathOptions& path, const PathShape& shape,
                           const RequestLimits& limits, const std::string& field);

}  // namespace simgrad::server::validation
