// The presence of cotangents in every region that differentiation writes, decided before
// anything is written.
//
// Maths: every slot of a region to be written (presence_shape.h) has a presence: the merge of what
//   is contributed to it. A loop takes the join of what enters it and of what its regions yield, so
//   presence is a least fixpoint of monotone rules: it rises from never or always to masked, once.
//   The regions are first visited in the order in which they will be written, with what is known;
//   then only what rose is followed. A region reversed in several ways (the tests of a while) is
//   planned once for each. A loop into which no cotangent comes is not planned, as it will not be
//   written.
// Cost: linear in the operations, operands and loop slots of all regions to be written; each is one
//   visit of PassBudget::Search. Threads: one plan, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/program/pass_budget.h"
#include "sim/program/presence.h"
#include "sim/program/presence_shape.h"
#include "sim/program/program.h"

namespace simgrad::sim {

class PresencePlan {
 public:
  // A region that will be written, and a loop in it.
  enum class ScopeId : int32_t { kNone = -1 };
  enum class LoopId : int32_t { kNone = -1 };
  // The regions of a reverse loop, in the order of its vjp (loop.h).
  enum Which : uint8_t { kBody, kTestInner, kTestLast, kTestBoth };
  using RegionShape = presence::RegionShape;
  using LoopShape = presence::LoopShape;

  struct Scope {
    const RegionShape* shape;
    int32_t first;       // slot
    int32_t first_loop;  // loops stand in the order of their ordinals
    int32_t owner;       // loop, or -1
  };
  struct Loop {
    const LoopShape* shape;
    int32_t parent;
    int32_t first;  // slot
    bool open = false;
    int32_t inside[4] = {-1, -1, -1, -1};
  };

  explicit PresencePlan(PassBudget& budget) : budget_(budget) {}
  PresencePlan(const PresencePlan&) = delete;
  PresencePlan& operator=(const PresencePlan&) = delete;

  // Plans one execution of a region. `entered` is the presence that enters it; `left`, if not null,
  // receives the presence that leaves it. Shapes outlive the plan.
  ScopeId Once(const RegionShape& shape, const std::vector<Presence>& entered,
               std::vector<Presence>* left);
  // Plans many executions. What leaves one enters the next through the first slots of `entered`;
  // their presence, joined over all executions, is `carried`.
  ScopeId Repeated(const RegionShape& shape, const std::vector<Presence>& entered,
                   std::vector<Presence>& carried);

  // The loops of a scope, from the last operation of its region up. kNone: it is not written.
  LoopId LoopOf(ScopeId scope, int32_t ordinal) const;
  // The presence of carried values, then of captures.
  std::vector<Presence> PresenceOf(LoopId loop) const;
  ScopeId Inside(LoopId loop, Which which) const;
  // The place of an operation among all that are reversed, or -1; `next` counts those of the scope
  // that were asked for, from the last operation up.
  int32_t ReaderOf(ScopeId scope, const Op& op, size_t& next) const;

  // The parts of the plan (read_order.h).
  const Scope& scope(int32_t scope) const { return presence::At(scopes_, scope); }
  const Loop& loop(int32_t loop) const { return presence::At(loops_, loop); }
  size_t slots() const { return given_.size(); }        // of all scopes
  size_t loop_slots() const { return joined_.size(); }  // of all loops
  // The presence of a slot, as far as it was handed on.
  Presence Given(int32_t scope, int32_t slot) const;

 private:
  // A slot that rose and has yet to be followed: of a scope, or of a loop.
  struct Risen {
    bool of_loop;
    int32_t owner;
    int32_t slot;
  };

  int32_t NewScope(const RegionShape& shape, int32_t owner);
  int32_t NewLoop(const LoopShape& shape, int32_t parent);
  Presence Now(int32_t scope, int32_t slot) const;
  void Give(int32_t scope, int32_t slot);
  void Add(int32_t scope, int32_t slot, Presence before, Presence after);
  void JoinIn(int32_t loop, int32_t slot, Presence presence);
  void Visit(int32_t scope);
  void EnterLoop(int32_t scope, int32_t loop);
  void Open(int32_t loop);
  void OpenRegion(int32_t loop, Which which);
  void HandOn(int32_t scope, int32_t slot, Presence before, Presence after);
  void Pass(int32_t scope, const presence::Out& out, Presence before, Presence after);
  void PassExport(int32_t loop, int32_t slot, bool from_body, Presence before, Presence after);
  void FollowLoop(int32_t loop, int32_t slot);
  void Follow();

  PassBudget& budget_;
  std::vector<std::unique_ptr<LoopShape>> repeats_;
  std::vector<Scope> scopes_;
  std::vector<Loop> loops_;
  // By slot of every scope: how many contributions are present always, how many masked, and what
  // was handed on.
  std::vector<int32_t> always_;
  std::vector<int32_t> masked_;
  std::vector<uint8_t> given_;
  // By slot of every loop: the presence now, and as it was last handed on.
  std::vector<Presence> joined_;
  std::vector<Presence> joined_given_;
  std::vector<Risen> risen_;
};

}  // namespace simgrad::sim
