// Writes frames of the tape: filled while a step is replayed, read while it is reversed.
//
// Places in frames: tape_plan.h. Regions of which nothing is kept have none, and nothing is written.
// Errors: none. Cost: linear in what is written. Threads: pure.
#pragma once

#include <map>

#include "sim/plan/tape_plan.h"
#include "sim/plan/values.h"

namespace simgrad::sim::plan {

class FrameWriter {
 public:
  FrameWriter(const Program& program, Values& values, StatementWriter& out)
      : program_(program), values_(values), out_(out) {}

  // From now on every frame is made and filled (`keeps`), or read.
  void Use(const TapePlan* tape, bool keeps);
  const TapePlan& tape() const { return *tape_; }
  // The top region that is reversed.
  void SetPrimal(const Region* primal) { primal_ = primal; }

  // The frame of a region that is about to run, or is reversed.
  void Push(const Region& region);
  void Set(const Region& region, Register place);
  Register Of(const Region& region) const;  // none: nothing of it is kept
  // Keeps a value in the frame of `home` if the adjoint reads it; so all arguments of a region.
  void Keep(ValueId id, const Region& home);
  void KeepArgs(const Region& region);
  View Recall(ValueId primal);
  // One number of a frame: the element behind the offset.
  Register RecallOne(Register frame, int64_t offset, Register element, Carrier carrier,
                     bool shared);

  // The frames of one loop while it runs: nothing, where nothing of it is kept.
  struct Chain {
    const LoopPlace* place = nullptr;
    const FrameLayout* frame = nullptr;
    View last, turns;  // shared locals
  };
  Chain Open(const Op& loop);
  void Next(const Chain& chain, const Op& loop);  // at the begin of a turn
  // Behind the loop; `iterations` and `tests` of a while.
  void Close(const Chain& chain, Register element, Register iterations, Register tests);

 private:
  void KeepAt(Register frame, int64_t offset, const View& view);

  const Program& program_;
  Values& values_;
  StatementWriter& out_;
  const TapePlan* tape_ = nullptr;
  bool keeps_ = false;
  const Region* primal_ = nullptr;
  std::map<const FrameLayout*, Register> frames_;
};

}  // namespace simgrad::sim::plan
