// Writes a function of a plan as LLVM instructions: one instance in each lane of the vectors.
//
// Maths: a register is `parts` vectors of `width` lanes, or a scalar where it is the same for all.
//   Lanes that left a loop stay masked until the others have; stores and records heed the mask.
// Cost: linear in the plan. Threads: one per module.
#pragma once

#include <cstdint>
#include <string>

#include "sim/backend/compiled/group/writer_options.h"
#include "sim/plan/plan.h"

namespace llvm {
class Module;
}

namespace simgrad::sim::compiled {

// In which order a function runs the steps of a call; kOne: it runs once, at the first.
enum class StepOrder : uint8_t { kOne, kAscending, kDescending };

// Adds `void name(GroupArgs*)` to the module, which holds the scalar functions. Returns the bytes of
// workspace it needs.
int64_t WriteFunction(llvm::Module& module, const plan::Plan& plan, const plan::Function& function,
                      StepOrder order, const WriterOptions& options, const std::string& name);

}  // namespace simgrad::sim::compiled
