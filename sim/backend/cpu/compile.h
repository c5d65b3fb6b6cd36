// Compiles a numerical program into a plan for the block interpreter.
//
// Cost: n log n in the program, and linear in the elements of its reductions and moves. Errors:
// none; the program has been verified and lowered. Throws StopRequested where the meter says so.
// Threads: pure.
#pragma once

#include <memory>
#include <vector>

#include "sim/backend/cpu/plan.h"
#include "sim/work_meter.h"

namespace simgrad::sim::cpu {

// How an input of a batch arrives.
struct InputForm {
  bool per_instance = false;
  bool per_step = false;
  bool operator==(const InputForm&) const = default;
};

struct PlanOptions {
  bool diagnostics = true;  // sites, margins and ranges are counted
  bool looks = true;        // non-finite results are detected
  bool adjoint = false;     // records what the adjoint reads, and the adjoint regions themselves
  bool operator==(const PlanOptions&) const = default;
};

std::unique_ptr<Plan> CompilePlan(std::shared_ptr<const NumericalProgram> program,
                                  const std::vector<InputForm>& inputs, const KernelTable& kernels,
                                  const PlanOptions& options, WorkMeter meter = {});

}  // namespace simgrad::sim::cpu
