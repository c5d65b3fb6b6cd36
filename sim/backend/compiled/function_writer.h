// Writes a function of a plan as LLVM instructions: one instance in each lane of the vectors.
//
// Maths: a register is `parts` vectors of `width` lanes, or a scalar where it is the same for all.
//   Lanes that left a loop stay masked until the others have; stores and records heed the mask.
// Cost: linear in the plan. Threads: one per module.
#pragma once

#include <string>

#include "sim/backend/compiled/group_args.h"
#include "sim/plan/plan.h"

namespace llvm {
class Module;
}

namespace simgrad::sim::compiled {

struct LaneShape {
  int width = 8;  // lanes of one vector
  int parts = 2;  // vectors side by side
  int lanes() const { return width * parts; }
};

// How an input reaches a group.
struct InputForm {
  bool per_lane = false;
  bool per_step = false;
  bool sums_per_step = false;  // its gradient has an entry for each step
  bool operator==(const InputForm&) const = default;
};

struct WriterOptions {
  LaneShape shape;
  std::vector<InputForm> inputs;   // per program input
  bool stops = false;              // policy `stop`
  bool looks = false;              // at results, for health
  bool decides = false;            // records decisions
  bool ranges = false;             // records under- and overflows
  bool extremes = false;           // smallest margins and tested values among them
  bool instances = false;          // level `instances`
  bool evades_subnormals = false;  // products meet none (product_near_zero.h)
};

// In which order a function runs the steps of a call; kOne: it runs once, at the first.
enum class StepOrder : uint8_t { kOne, kAscending, kDescending };

// Adds `void name(GroupArgs*)` to the module, which holds the scalar functions. Returns the bytes of
// workspace it needs.
int64_t WriteFunction(llvm::Module& module, const plan::Plan& plan, const plan::Function& function,
                      StepOrder order, const WriterOptions& options, const std::string& name);

}  // namespace simgrad::sim::compiled
