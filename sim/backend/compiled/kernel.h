// The machine code of one plan: its functions for groups of instances.
//
// Cost: a compile. Errors: INTERNAL with LLVM's words. Threads: its functions may run in any.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/compiled/function_writer.h"
#include "sim/backend/compiled/machine_code.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

using GroupFunction = void (*)(GroupArgs*);

struct Kernel {
  std::unique_ptr<MachineCode> code;
  LaneShape shape;
  GroupFunction start = nullptr;
  GroupFunction step = nullptr;  // steps [first_step, first_step + count)
  GroupFunction finish = nullptr;
  int64_t workspace = 0;  // bytes, of the function that needs most
};

struct KernelOptions {
  Isa isa = BestIsa();
  Effort effort = Effort::kBest;
  int parts = 2;                   // vectors side by side, where lanes hold instances
  std::optional<Mapping> mapping;  // else as mapping.h says
};

// The functions of a plan's adjoint; its groups have the lanes of the forward kernel.
struct AdjointKernel {
  std::unique_ptr<MachineCode> code;
  GroupFunction replay = nullptr;  // steps of a call, ascending
  GroupFunction reverse_terminal = nullptr;
  GroupFunction reverse_last = nullptr;  // null: as `reverse`
  GroupFunction reverse = nullptr;       // steps of a call, descending
  GroupFunction reverse_initial = nullptr;
  int64_t workspace = 0;
};

// `writer`: what is recorded; its shape is chosen here.
absl::StatusOr<Kernel> CompilePlan(const plan::Plan& plan, WriterOptions writer,
                                   const KernelOptions& options);
absl::StatusOr<AdjointKernel> CompileAdjoint(const plan::Plan& plan, WriterOptions writer,
                                             const KernelOptions& options);

}  // namespace simgrad::sim::compiled
