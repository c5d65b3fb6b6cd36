// What a run on the cpu executor allocates, in bytes.
//
// Upper bounds; but for the lanes of padding, the numbers of a straight-line program are exact.
// Cost: that of compiling the plans where they are not cached, which a run would do anyway.
#pragma once

#include <cstdint>

#include "sim/backend/cpu/block_state.h"
#include "sim/backend/cpu/plan_cache.h"
#include "sim/backend/executor.h"

namespace simgrad::sim::cpu {

// Bound of one execution of a region on `width` lanes with a record, without what its loops run.
int64_t RecordBytesOf(const RegionPlan& region, int64_t width);

// One checkpoint.
int64_t CheckpointBytes(const NumericalProgram& program, const BlockLayout& layout,
                        int64_t instances);

// The records of some steps: every thread holds those of a segment, which ends with the step that
// fills it, and the states at the beginnings of the segments.
struct StepRecords {
  int64_t steps = 1;
  int64_t all = 0;
  int64_t largest = 0;
};
int64_t RangeRecordBytes(const BlockLayout& layout, int threads, const StepRecords& records);

int ThreadsOf(const RunOptions& options, const BlockLayout& layout);

// `adjoint` may be null: then what only the adjoint's plan takes is left out.
MemoryNeed NeedOfPlans(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                       const BlockLayout& layout, const Plan& forward, const Plan* adjoint);

// Throws StopRequested. `block_width` 0: chosen.
MemoryNeed NeedOfRun(const Batch& batch, const RunOptions& options, const RangeSteps& steps,
                     PlanCache& plans, int64_t block_width);

}  // namespace simgrad::sim::cpu
