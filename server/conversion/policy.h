// Precision policies: message to resolved policy, and back with what each role runs as.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "precision/policy.h"
#include "simgrad/v1/policy.pb.h"

namespace simgrad::server::conversion {

// Errors: INVALID_FIELD with the field path below `field`. Site names are checked by sim::Lower.
absl::StatusOr<precision::Policy> PolicyFromProto(const v1::Policy& message,
                                                  const std::string& field);

// With every field filled in.
v1::ResolvedPolicy PolicyToProto(const precision::Policy& policy);

// "native" for the formats that are computed in, "emulated" for those that are rounded to: of every
// executor, because kernels of a GPU compute as the CPU does (precision/lane.h).
std::string ExecutionOf(precision::Format format);

}  // namespace simgrad::server::conversion
