// Sums that the vector kernels do not cover: the exact order, and accumulators that are narrower
// than the operand. They run one lane at a time, in double (precision/reduction.h).
#pragma once

#include "precision/reduction.h"
#include "sim/backend/cpu/kernel_table.h"

namespace simgrad::sim::cpu {

struct ExactReductionPlan {
  ReducePlan reduce;
  bool cumulative = false;
  precision::Order order = precision::Order::kExact;
  precision::Format accumulator = precision::Format::kF64;
  precision::Format from = precision::Format::kF64;
  precision::Format to = precision::Format::kF64;
};

void RunExactReduction(const Instruction& instruction, Lanes& lanes);

}  // namespace simgrad::sim::cpu
