// Says when products near zero are better not left to the processor.
//
// Maths: an operation with a subnormal operand, or with a tiny inexact result, sets a flag in the
//   processor at no cost. After a piece of work that set it, the next piece evades subnormals
//   (kernels_near_zero.inc), until one meets no such product. No bit depends on it.
// Cost: two reads of a control register per piece. Threads: one watch, one thread.
// Source: Intel's optimization reference manual, "Floating-Point Modes", on assists for subnormals;
//   measured: docs/performance.md. Processors of other vendors compute subnormals as fast as any
//   number; there the watch does nothing.
#pragma once

#include "sim/backend/cpu/kernel_table.h"

namespace simgrad::sim::cpu {

class UnderflowWatch {
 public:
  void Begin(Lanes& lanes) const;
  void End(Lanes& lanes);

 private:
  bool evades_ = false;
};

}  // namespace simgrad::sim::cpu
