// A numerical program and its policy as messages.
#pragma once

#include "sim/program/numerical_program.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

v1::ProgramInfo ProgramInfoToProto(const sim::NumericalProgram& program);

}  // namespace simgrad::server::conversion
