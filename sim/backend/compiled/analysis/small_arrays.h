// Finds the arrays of few elements that stay in registers, and the loops that are written turn by turn
// for it.
//
// Maths: a loop of few turns over arithmetic and records is as many copies of its body. An array is
//   registers if each load and store of it then names its element.
// Cost: linear in the statements, for each loop around them. Threads: pure.
#pragma once

#include <unordered_set>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

struct SmallArrays {
  std::unordered_set<const plan::Statement*> unrolled;  // loops of the function
  std::vector<bool> named;  // by buffer: it has few elements, and each access names one
};

SmallArrays FindSmallArrays(const plan::Function& function);

}  // namespace simgrad::sim::compiled
