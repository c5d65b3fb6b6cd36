// A function of a plan as C++ for a GPU: one statement of the plan is one of the text.
//
// Registers and arrays are those of operand_text.h. A long function is cut (function_cuts.h). With a
// block per instance barriers stand where threads meet (element_owners.h).
// Errors: none. Cost: linear, times the depth of loops. Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "sim/backend/cuda/text/text_options.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

struct FunctionText {
  std::string text;
  int64_t workspace = 0;  // bytes of the block
};

// `name` in C++: of an Instance, and where steps are reversed of the place of the step's frame, which
// the replay of a step returns.
FunctionText WriteFunction(const plan::Plan& plan, const plan::Function& function,
                           const TextOptions& options, const std::string& name);

}  // namespace simgrad::sim::cuda
