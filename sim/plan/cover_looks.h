// Deletes looks at numbers whose NaN or Inf another look of the same block sees.
//
// Maths: a sum, difference or product is not finite where an operand is not, and no rounding but a
//   saturating one makes it finite. So a look at the last partial sum of a gradient sees what each
//   summand was, and each partial sum before it. The results of the program's operations were
//   covered by each other before (sim/program/detect.h); these are the looks that planning adds,
//   and those at what planning adds up.
//   A look covers others of its block at the same mask, or at any mask if it has none itself; never
//   those before an exit of a loop or a commit that it stands behind.
// Cost: linear in the function. Threads: pure.
#pragma once

#include "sim/plan/plan.h"

namespace simgrad::sim::plan {

void CoverLooks(Function& function);

}  // namespace simgrad::sim::plan
