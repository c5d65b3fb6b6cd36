// Where cotangents will be present in every region that differentiation writes, decided before
// anything is written.
//
// Maths: every value has a presence (adjoint_writer.h) in every region to be written: the merge of
//   what is contributed to it. A loop takes the join of what enters it and of what its regions
//   yield, so presence is a least fixpoint of monotone rules: it rises from never or always to
//   masked, once. The regions are first visited in the order in which they will be written, with
//   what is known; then only what rose is followed. A region reversed in several ways (the tests of
//   a while) is planned once for each. A loop into which no cotangent comes is not planned, as it
//   will not be written.
// Cost: linear in the operations, operands and loop slots of all regions to be written; each is one
//   visit of PassBudget::Search. Threads: one plan, one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sim/program/adjoint_writer.h"
#include "sim/program/loop_captures.h"
#include "sim/program/pass_budget.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class PresencePlan {
 public:
  // A region that will be written, and a loop in it.
  enum class ScopeId : int32_t { kNone = -1 };
  enum class LoopId : int32_t { kNone = -1 };
  // The regions of a reverse loop, in the order of its vjp (loop.h).
  enum Which : uint8_t { kBody, kTestInner, kTestLast, kTestBoth };

  // All outlive the plan.
  PresencePlan(const Program& program, const AdjointWriter& writer, const LoopCaptures& captures,
               PassBudget& budget);
  ~PresencePlan();
  PresencePlan(const PresencePlan&) = delete;
  PresencePlan& operator=(const PresencePlan&) = delete;

  // A top-level region: what cotangents are contributed to, in this order, and whose presence is
  // asked for at the end. Made before differentiation changes the region.
  struct RegionShape;
  const RegionShape& Read(const Region& region, const std::vector<ValueId>& entered,
                          const std::vector<ValueId>& left);

  // One execution: presence of `entered`, then, if asked for, that of `left`.
  ScopeId Once(const RegionShape& shape, const std::vector<Presence>& entered,
               std::vector<Presence>* left);
  // Many: what is left comes back to the first of `entered`, whose presence is `carried`, joined
  // with what comes back.
  ScopeId Repeated(const RegionShape& shape, const std::vector<Presence>& entered,
                   std::vector<Presence>& carried);

  // The loops of a scope, from the last operation of its region up. kNone: it is not written.
  LoopId LoopOf(ScopeId scope, int32_t ordinal) const;
  // Of carried values, then of captures.
  std::vector<Presence> PresenceOf(LoopId loop) const;
  ScopeId Inside(LoopId loop, Which which) const;

  // The place of an operation among all that are reversed, or -1; `next` counts those of the scope
  // that were asked for, from the last operation up.
  int32_t ReaderOf(ScopeId scope, const Op& op, size_t& next) const;
  // Puts the operations inside a loop that stands at this depth into the order in which rounds
  // would first meet them: rounds that write the loop's regions again and again, each with the
  // presence that the one before yielded, nested loops with rounds of their own. It is the order in
  // which a program reads what is outside of its loops. Cost: as a visit of the loop, n log n.
  void OrderReads(LoopId loop, size_t depth);
  // By depth, then by place.
  const std::vector<std::vector<int32_t>>& orders() const { return orders_; }

 private:
  class Rounds;
  struct Out;
  struct LoopShape;
  struct Scope;
  struct Loop;
  // What rose and has yet to be followed: a slot of a scope, or a slot of a loop.
  struct Risen {
    bool of_loop;
    int32_t owner;
    int32_t slot;
  };

  // Shapes.
  bool Takes(ValueId id) const { return writer_.IsActive(id) && !writer_.IsInput(id); }
  int32_t NewSlot(RegionShape& shape) const;
  int32_t SlotOf(RegionShape& shape, ValueId id);
  void ReadOps(RegionShape& shape, const Region& region);
  void ReadOp(RegionShape& shape, const Op& op);
  void ReadLoop(RegionShape& shape, const Op& op);
  void ReadNested(RegionShape& shape, const Op& op, const Region& region, bool test);
  void Finish(RegionShape& shape) const;

  // Presence.
  int32_t NewScope(const RegionShape& shape, int32_t owner, Which which);
  int32_t NewLoop(const LoopShape& shape, int32_t parent);
  Presence Now(int32_t scope, int32_t slot) const;
  Presence Given(int32_t scope, int32_t slot) const;  // as far as it was handed on
  void Add(int32_t scope, int32_t slot, Presence before, Presence after);
  void JoinIn(int32_t loop, int32_t slot, Presence presence);
  void Visit(int32_t scope);
  void EnterLoop(int32_t scope, int32_t ordinal);
  void Open(int32_t loop);
  void OpenRegion(int32_t loop, Which which);
  void HandBack(int32_t scope);
  void HandOn(int32_t scope, int32_t slot, Presence before, Presence after);
  void Pass(int32_t scope, const Out& out, Presence before, Presence after);
  void PassExport(int32_t loop, int32_t slot, bool from_body, Presence before, Presence after);
  void FollowLoop(int32_t loop, int32_t slot);
  void Follow();

  const Program& program_;
  const AdjointWriter& writer_;
  const LoopCaptures& captures_;
  PassBudget& budget_;
  std::deque<std::unique_ptr<RegionShape>> tops_;
  std::vector<std::unique_ptr<LoopShape>> repeats_;
  std::vector<int32_t> slot_of_;  // by value, in the region being read
  std::vector<Scope> scopes_;
  std::vector<Loop> loops_;
  // By slot of every scope: how many contributions are present always, how many masked, and what
  // was handed on.
  std::vector<int32_t> always_;
  std::vector<int32_t> masked_;
  std::vector<uint8_t> given_;
  // By slot of every loop: now, and what was handed on.
  std::vector<Presence> joined_;
  std::vector<Presence> joined_given_;
  std::vector<Risen> risen_;
  std::vector<std::vector<int32_t>> orders_;
  // What the rounds of one OrderReads have met, by slot of every scope and of every loop.
  std::vector<int32_t> met_;
  std::vector<int32_t> joined_met_;
  int32_t ordering_ = 0;
};

}  // namespace simgrad::sim
