// The vjp rule of every operation without regions (docs/numerics.md section 6).
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Contributes the cotangents of `op`'s operands, given the slot of its one result.
void WriteVjp(AdjointWriter& writer, const Op& op);

}  // namespace simgrad::sim
