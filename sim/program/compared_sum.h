// Finds the addition that made a compared value: its operands count in the decision's margin.
//
// Maths: the rounding error of a sum follows the magnitudes of its operands, not that of the sum.
//   A margin in ulps is therefore taken at the largest of |lhs|, |rhs| and these magnitudes
//   (docs/numerics.md section 7); of an fma they are |a * b|, rounded to f64, and |c|.
// Errors: none. Cost: the casts on the way. Threads: pure.
#pragma once

#include "sim/program/program.h"

namespace simgrad::sim {

// The add, sub or fma of reals that made `compared`, seen through casts; null where there is none.
// `producer(id)` returns the operation of the region of the test that produces a value, or null.
template <class Producer>
const Op* ComparedSum(const Program& program, ValueId compared, const Producer& producer) {
  const Op* op = producer(compared);
  while (op != nullptr && op->code == OpCode::kCast) op = producer(op->operands[0]);
  if (op == nullptr || program[op->results[0]].type.element != ElementType::kReal) return nullptr;
  const bool sums =
      op->code == OpCode::kAdd || op->code == OpCode::kSub || op->code == OpCode::kFma;
  return sums ? op : nullptr;
}

}  // namespace simgrad::sim
