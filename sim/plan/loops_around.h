// The turns of loops in which statements are being written.
//
// Threads: pure.
#pragma once

#include "sim/plan/statement_writer.h"

namespace simgrad::sim::plan {

struct LoopsAround {
  Register iteration = kNoRegister;  // flattened; none: 0
  Register element = kNoRegister;    // of mapped axes, flattened; none: 0
  Register run = kNoRegister;        // the element of the innermost loop per element
};

// around * count + at; without an `around`: at.
Register Flattened(StatementWriter& out, Register around, Register count, Register at);
// The number of an element of the loops around, of a value of `count` that is contiguous.
Register ElementNumber(StatementWriter& out, const LoopsAround& around, const Index& index,
                       int64_t count);

}  // namespace simgrad::sim::plan
