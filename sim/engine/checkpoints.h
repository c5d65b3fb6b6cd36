// Checkpoints of a run within a byte budget, and the range of steps that one reversal can hold.
//
// Forward, a checkpoint is saved at every multiple of an interval. If the caller gives no interval,
// it starts at that of the budget. Whenever the checkpoints outgrow their share of the budget, the interval
// doubles and every other checkpoint is dropped; so nothing needs to be known about the run
// beforehand. Once the forward run has shown how large the tapes are, the budget may grow up to
// its limit, if the caller grants it. In reverse, the last checkpoint before the goal is restored,
// the steps up to a range that fits are run again, and the range is reversed. Free room on
// that way takes checkpoints (NextInReverse). No bit depends on any of
// this (docs/numerics.md section 6).
// Errors: RESOURCE_EXHAUSTED if one checkpoint and the tape of one step do not fit together, or
//   if a given interval does not fit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/backend/executor.h"
#include "sim/engine/kept_run.h"
#include "sim/engine/reversal_budget.h"
#include "sim/work_meter.h"

namespace simgrad::sim {

class Checkpoints {
 public:
  // `interval` 0: chosen. `reserve` as in Work.
  Checkpoints(Run& run, int64_t interval, const ReversalBudget& budget, ReserveCallback reserve);

  // Before the forward run: whether a tape whose size is known already fits beside one checkpoint.
  absl::Status CheckLeast() const;

  // The next step at which a checkpoint is due, from `step` on.
  int64_t NextDue(int64_t step) const;
  // Saves the state of the run at `step` if one is due there.
  absl::Status Visit(int64_t step);

  // The state that was saved last, if it is that at `step`; else null.
  std::shared_ptr<const void> StateAt(int64_t step) const;

  // After the forward run, whose counts are the real ones: whether the tape of every single step
  // fits beside one checkpoint, in a budget that grows for it. Steps: those of the run.
  absl::Status CheckReversal(int64_t steps, WorkMeter& meter);

  // The start of the range that ends before `end` and can be reversed at once: its tape fits
  // beside the checkpoints that are needed, and it has at most `limit` steps. Drops checkpoints at
  // or behind `end`.
  absl::StatusOr<int64_t> RangeBefore(int64_t end, int64_t limit);
  // Restores the last checkpoint at or before `step` and returns its step.
  int64_t RestoreBefore(int64_t step);
  // Returns the step at which to save the state next, on the way from `from` to the range [to, end);
  // `to` where no state is to be saved. `reserved`: the bytes of the range's tape.
  // Maths: n ranges of this length lie in [from, end), and c - 1 checkpoints have room beside the one
  //   at `from`. If r is the least number with binomial(c + r, c) >= n, the next checkpoint stands
  //   after n r / (c + r) ranges, and no step runs forward again more than r times.
  // Source: Griewank, Achieving logarithmic growth of temporal and spatial complexity in reverse
  //   automatic differentiation (1992).
  int64_t NextInReverse(int64_t from, int64_t to, int64_t end, int64_t reserved) const;
  void Save(int64_t step);

  size_t count() const { return saved_.size(); }

  // The saved states of a run that is kept, ascending. Adopt takes over those of such a run, whose
  // memory is not part of this budget.
  std::vector<SavedState> Saved() const;
  void Adopt(const std::vector<SavedState>& saved);

 private:
  struct Held {
    SavedState saved;
    bool counts = true;  // against the budget
  };
  bool Grow(int64_t bytes);
  int64_t HeldBytes() const { return counted_ * saved_bytes_; }
  void DropLast();
  int64_t StepOf(size_t at) const { return saved_[at].saved.step; }

  Run& run_;
  bool chosen_;
  int64_t interval_;
  ReversalBudget budget_;
  ReserveCallback reserve_;
  int64_t saved_bytes_;
  std::vector<Held> saved_;  // ascending; the first is at step 0
  int64_t counted_ = 0;      // of these, against the budget
};

}  // namespace simgrad::sim
