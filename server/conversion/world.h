// The world of a request as a verified program: a built-in one by name, or the caller's own.
//
// Errors: INVALID_FIELD, INVALID_PROGRAM or LIMIT_EXCEEDED with the field path below `field`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/conversion/compile_control.h"
#include "sim/program/program.h"
#include "sim/program/verify.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// Expects that validation::CheckWorld has passed. Errors: INVALID_ARGUMENT with field and reason;
// CANCELLED or RESOURCE_EXHAUSTED where `compilation` says so.
absl::StatusOr<sim::Program> WorldFromProto(const v1::World& world, const std::string& field,
                                            Compilation& compilation,
                                            const sim::ProgramLimits& limits = {});

// The label of metrics and logs: the name of a built-in world, or "custom".
std::string WorldLabel(const v1::World& world);

}  // namespace simgrad::server::conversion
