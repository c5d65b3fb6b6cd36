// Whether the lanes of vectors hold instances of a run or elements of its arrays.
//
// Rule: statements of a step that run for all instances, counted in vectors. Lanes: every statement
//   of every element once for each vector of instances, of which the last may be mostly empty.
//   Elements: once for each instance; in a parallel loop over n elements that holds no other loop,
//   n / width vectors and the rest one by one. The smaller count wins; where they are equal, lanes if
//   the instances fill a vector.
// Cost: of CountsOf, linear in the plan. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/backend/compiled/machine/object_code.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

struct StepCounts {
  double numbers = 0;  // statements of a step of one instance
  double vectors = 0;  // with vectors of elements
};

// `width`: lanes of a vector.
StepCounts CountsOf(const plan::Plan& plan, int64_t width);
Mapping ChooseMapping(const StepCounts& step, int64_t instances, int64_t width);

}  // namespace simgrad::sim::compiled
