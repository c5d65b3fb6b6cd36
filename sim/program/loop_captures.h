// Which values of enclosing regions each loop reads: its captures, in order of first use.
//
// The primal's loops are asked for by themselves; operations that differentiation adds behind
// others read nothing new. Loops per element have none: what they read comes in as mapped operands.
// Cost: linear in the program, times the depth of its loops. Threads: immutable once made.
#pragma once

#include <unordered_map>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class LoopCaptures {
 public:
  // Only values that `counts` holds of, by value.
  LoopCaptures(const std::vector<Region*>& regions, const std::vector<bool>& counts,
               PassBudget& budget);
  const std::vector<ValueId>& Of(const Op& loop) const;

 private:
  std::unordered_map<size_t, std::vector<ValueId>> captures_;  // by a value that the loop defines
};

}  // namespace simgrad::sim
