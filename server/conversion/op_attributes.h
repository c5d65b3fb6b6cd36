// The attributes of an operation, as its message has them and as the program does.
//
// Which they are, and where they stand, is told by the operation's entry (sim/op/op_info.h): the
// message is read by the names of its fields. Cost: linear in the attributes. Threads: any.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sim/op/op_info.h"
#include "simgrad/v1/program.pb.h"

namespace simgrad::server::conversion {

// `path`: of the operation, for the error. Errors: INVALID_ARGUMENT naming the attribute, also for
// one that the operation does not have.
absl::Status ReadAttributes(const v1::Op& op, sim::OpCode code, const std::string& path,
                            sim::Attributes& out);

void WriteAttributes(const sim::Op& op, v1::Op& out);

}  // namespace simgrad::server::conversion
