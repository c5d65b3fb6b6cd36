// Whether the lanes of vectors hold instances of a run or elements of its arrays.
//
// Rule: statements of a step that run for all instances, counted in vectors. Lanes: every statement
//   of every element once for each vector of instances, of which the last may be mostly empty.
//   Elements: once for each instance; in a parallel loop over n elements that holds no other loop,
//   n / width vectors and the rest one by one. The smaller count wins, and elements where they are
//   equal: a group of one instance has no masks and the smaller workspace.
// Cost: linear in the plan. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/backend/compiled/machine_code.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// `width`: lanes of a vector.
Mapping ChooseMapping(const plan::Plan& plan, int64_t instances, int64_t width);

}  // namespace simgrad::sim::compiled
