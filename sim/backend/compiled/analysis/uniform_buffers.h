// Finds locals whose elements are the same in all lanes of a group.
//
// Maths: among what invariant loops store (plan/invariants.h), that which is computed from tables and
//   from inputs that all instances share. One number for each element takes the place of a vector for
//   each: a matrix of weights then fits a near cache.
// Cost: linear in the statements, a few times. Threads: pure.
#pragma once

#include <vector>

#include "sim/backend/compiled/group/writer_options.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// By buffer of the function.
std::vector<bool> UniformBuffers(const plan::Function& function,
                                 const std::vector<InputForm>& inputs);

}  // namespace simgrad::sim::compiled
