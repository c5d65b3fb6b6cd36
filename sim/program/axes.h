// Axes of a shape: how far apart their elements lie, and which of them a reduction takes.
//
// Errors: none. Threads: pure.
#pragma once

#include <vector>

#include "sim/program/program.h"

namespace simgrad::sim {

// By axis: the distance between neighbours, in elements, row-major.
std::vector<int64_t> StridesOf(const Shape& shape);

// Whether a reduction or a cumsum runs along an axis of its operand.
bool IsReduced(const Op& op, size_t axis);

}  // namespace simgrad::sim
