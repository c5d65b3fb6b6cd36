// A caller's own world: message to program, for any bytes that parse.
//
// Every id, enum, name and shape is looked at before it is used, so what comes out can be given to
// sim::Verify; it is not verified yet. Never allocates by a number found in the message, only by
// the length of what was sent. Errors: INVALID_FIELD or LIMIT_EXCEEDED with the path inside the
// program ("step.ops[3].operands[0]").
#pragma once

#include "absl/status/statusor.h"
#include "sim/program/program.h"
#include "sim/program/verify.h"
#include "simgrad/v1/program.pb.h"

namespace simgrad::server::conversion {

absl::StatusOr<sim::Program> ProgramFromProto(const v1::Program& message,
                                              const sim::ProgramLimits& limits = {});

}  // namespace simgrad::server::conversion
