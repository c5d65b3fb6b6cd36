// Which attributes of its message an operation has; what it has not must not be sent.
//
// Errors: INVALID_ARGUMENT naming the attribute. Cost: constant. Threads: any.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sim/program/opcode.h"
#include "simgrad/v1/program.pb.h"

namespace simgrad::server::conversion {

// `path`: of the operation, for the error.
absl::Status CheckAttributes(const v1::Op& op, sim::OpCode code, const std::string& path);

}  // namespace simgrad::server::conversion
