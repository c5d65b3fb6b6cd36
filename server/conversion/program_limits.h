// The limits of programs, as GetServerInfo tells them.
#pragma once

#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

// Sets the limits that programs have as they come (sim::ProgramLimits) and while they are lowered
// (sim::LoweredLimits); the others stay as they are.
void SetProgramLimits(v1::Limits& limits);

}  // namespace simgrad::server::conversion
