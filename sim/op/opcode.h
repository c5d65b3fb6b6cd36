// The code of every operation: its place in the table (op_info.h).
#pragma once

#include <cstdint>

namespace simgrad::sim {

enum class OpCode : uint8_t {
#define SIMGRAD_OPERATION(Name) k##Name,
#include "sim/op/operations.inc"
#undef SIMGRAD_OPERATION
};

inline constexpr int kOpCodeCount = 0
#define SIMGRAD_OPERATION(Name) +1
#include "sim/op/operations.inc"
#undef SIMGRAD_OPERATION
    ;

}  // namespace simgrad::sim
