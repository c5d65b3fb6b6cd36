// A program as a message: the inverse of program_from_proto.h for every program before lowering.
#pragma once

#include "sim/program/program.h"
#include "simgrad/v1/program.pb.h"

namespace simgrad::server::conversion {

v1::Program ProgramToProto(const sim::Program& program);

}  // namespace simgrad::server::conversion
