// The bytes that a run of compiled code allocates: live bytes of its plan per lane, and records.
//
// Upper bounds; padding lanes count. Cost: linear in the plan. Threads: pure.
#pragma once

#include <cstdint>

#include "sim/backend/block_sums.h"
#include "sim/backend/compiled/group/writer_options.h"
#include "sim/backend/compiled/kernels/kernel.h"
#include "sim/backend/executor.h"
#include "sim/plan/plan.h"

namespace simgrad::sim::compiled {

// Tapes of one segment of steps lie side by side; a step with more is a segment of its own.
inline constexpr int64_t kSegmentBytes = int64_t{1} << 18;

int64_t WorkspaceBytes(const plan::Plan& plan, const LaneShape& shape);
// An upper bound of what LLVM takes while it compiles a part.
int64_t CompileBytes(const plan::Plan& plan, Part part);
// One SaveState of so many groups.
int64_t SavedBytesOf(const plan::Plan& plan, const LaneShape& shape, int64_t groups);

// The numbers that a lane gives to a param declared weights in one reversed step: its cells, or
// factors of them.
struct GivenNumbers {
  int64_t count = 0;
  const plan::OuterProduct* product = nullptr;  // null: cells; of the plan
};
GivenNumbers GivenTo(const plan::Plan& plan, const BlockSums::Wanted& wanted);

// The bytes that sums for weights take: those that wait, per step, and the rest.
struct WeightsNeed {
  int64_t waiting = 0;
  int64_t held = 0;
};
// The bytes per lane that a step of a program with an adjoint tapes. Cost: linear in the program.
struct TapeBytes {
  double straight = 0;  // outside of loops
  double usual = 0;     // where each while turns once
  double at_caps = 0;
};
TapeBytes TapeBytesOf(const NumericalProgram& program);

// Throws StopRequested.
WeightsNeed WeightsNeedOf(const Batch& batch, const RunOptions& options, const LaneShape& shape,
                          WorkMeter& meter);
MemoryNeed NeedOfRun(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                     const plan::Plan& plan, const LaneShape& shape, const TapeBytes& tape,
                     const WeightsNeed& weights);

}  // namespace simgrad::sim::compiled
