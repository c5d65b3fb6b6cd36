// The part of an answer on the numerical program that ran: fingerprint, policy and sites.
#pragma once

#include <string>

#include "sim/program/numerical_program.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// All but the text, which travels where it is asked for.
v1::ProgramInfo ProgramInfoToProto(const sim::NumericalProgram& program);

// A serialised ProgramInfo with the text added to it.
std::string WithText(const std::string& info, const std::string& text);

}  // namespace simgrad::server::conversion
