// The vjp rule of every operation without regions (docs/numerics.md section 6).
#pragma once

#include "sim/program/adjoint_writer.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// Where the cotangent of an operand is present, where that of the operation's result is.
enum class Passage : uint8_t {
  kNone,    // nowhere: no cotangent passes
  kSame,    // never, always or masked as the result's
  kMasked,  // behind a mask
};
Passage PassageTo(const Program& program, const Op& op, size_t operand);

// Contributes the cotangents of `op`'s operands, given the slot of its one result.
void WriteVjp(AdjointWriter& writer, const Op& op);

}  // namespace simgrad::sim
