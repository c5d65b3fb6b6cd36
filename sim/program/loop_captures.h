// Finds the captures of each loop: the values of enclosing regions that it reads, by first use.
//
// Made before differentiation adds kinks to the primal, which read nothing new. A loop per element
// has no captures: it reads mapped operands.
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
