// Random worlds that are all loops: loops in tests and bodies, carried values that change places,
// captures, exports, loops per element, masks. For what differentiation decides about presence.
//
// Numbers do not matter here, so nothing keeps them in range. Threads: pure. The same seed gives
// the same world and the same question on every machine.
#pragma once

#include <cstdint>
#include <string>

#include "precision/policy.h"
#include "sim/program/numerical_program.h"

namespace simgrad::sim::woven {

struct Woven {
  Program world;
  precision::Policy policy;
  std::string objective;
  AdjointSpec adjoint;
};

Woven Weave(uint64_t seed);

}  // namespace simgrad::sim::woven
