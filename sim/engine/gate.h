// Which site kept an input from being used: named in the answer where an input is not connected.
#pragma once

#include <string>

#include "sim/program/program.h"

namespace simgrad::sim {

// The innermost loop or event that stands between the input and everything its value flows into:
// the site of a loop in whose body it is used, or of an event that chooses it. Of several the first
// in text order; empty where the value also flows on without passing one.
std::string GateOf(const Program& program, int32_t input);

}  // namespace simgrad::sim
