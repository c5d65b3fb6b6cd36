// The type and shape rule of every operation without regions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Types of the results that `op` must have for its operands and attributes. Does not look at
// op.results, except that literal, convert and tape take their type from it and that broadcast,
// reshape, slice and pad are checked against attributes.shape. Errors: INVALID_ARGUMENT with a
// field inside the operation. Loops (while, for and their vjp) are not handled here.
absl::StatusOr<std::vector<Type>> ResultTypes(const Program& program, const Op& op);

}  // namespace simgrad::sim
