// Orders the reads of values outside loops, which an adjoint makes in front of its reverse loops.
//
// Maths: the order is that of writing in rounds. Each round would write the regions of a loop
//   again, with the presence that the round before yielded; nested loops would have rounds of their
//   own. Operations that a round is the first to reverse read before those of later rounds. The
//   rounds are only followed here: each visits what the round before did not meet.
// Cost: as a visit of the loop, n log n. Threads: one order, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/presence_plan.h"

namespace simgrad::sim {

class ReadOrder {
 public:
  // Both outlive the order. The plan is complete before the first loop is added.
  ReadOrder(const PresencePlan& plan, PassBudget& budget) : plan_(plan), budget_(budget) {}

  // Orders the operations inside a loop that stands at this depth.
  void Add(PresencePlan::LoopId loop, size_t depth);
  // When the operation at this place (PresencePlan::ReaderOf) is first met, among those inside the
  // loop that was last added at this depth.
  int32_t FirstMet(size_t depth, int32_t reader) const {
    return presence::At(orders_[depth], reader);
  }

 private:
  class Rounds;

  const PresencePlan& plan_;
  PassBudget& budget_;
  std::vector<std::vector<int32_t>> orders_;  // by depth, then by place
  // By slot of every scope and of every loop: the loop whose rounds have met it.
  std::vector<int32_t> met_;
  std::vector<int32_t> joined_met_;
  int32_t ordering_ = 0;
};

}  // namespace simgrad::sim
