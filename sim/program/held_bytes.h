// Measures the memory that a program holds, for the caches that keep it.
//
// Units: bytes, as the allocator sees them: the object itself, and for each vector and string the
//   block that its capacity needs, with the allocator's header and rounding. Cost: linear in the
//   program. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/program/numerical_program.h"

namespace simgrad::sim {

int64_t HeldBytes(const Program& program);
int64_t HeldBytes(const NumericalProgram& numerical);

// The bytes of one operation without its regions, and of one value, as elements of a vector.
int64_t OwnBytes(const Op& op);
int64_t OwnBytes(const Value& value);

}  // namespace simgrad::sim
