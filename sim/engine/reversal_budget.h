// Says how much memory the checkpoints and tapes of a gradient get.
//
// Maths: there is a checkpoint every 32 steps while these are few, else about 2 sqrt(steps) of them. Where an
//   executor says how many steps its tape holds, they lie so far apart instead, to 128 steps; closer than 32
//   only while all of them take at most 32 MiB and a 32nd of the budget. The steps between two checkpoints then
//   run again once for their tape, and where a tape holds few steps, as often as checkpoints.h says. No bit
//   depends on it (docs/numerics.md section 6).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "sim/engine.h"

namespace simgrad::sim {

struct ReversalBudget {
  int64_t interval = 32;    // of checkpoints, tried first where the work gives none
  int64_t checkpoints = 0;  // of `held`, at most
  int64_t held = 0;         // what admission counts
  int64_t most = 0;         // what may be asked for, once the counts of the forward run are known
};

// The steps of the work's chunks and ranges, at most. `steps_at_once`: of a MemoryNeed; 0: not known.
RangeSteps RangeStepsOf(const Work& work, int64_t steps_at_once);

// The memory that a run or an executor says it needs.
using NeedCallback = std::function<absl::StatusOr<std::optional<MemoryNeed>>(const RangeSteps&)>;

// The need of the work for the ranges that it will have. Errors: those of `need_of`.
absl::StatusOr<std::optional<MemoryNeed>> NeedForItsRanges(const Work& work,
                                                           const NeedCallback& need_of);

// `saved`: bytes of one SaveState. `need` empty: at most half of the limit for checkpoints, all of it
// held.
ReversalBudget ReversalBudgetOf(const Work& work, const std::optional<MemoryNeed>& need,
                                int64_t saved);

}  // namespace simgrad::sim
