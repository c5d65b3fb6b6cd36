#include "sim/program/read_order.h"

#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

namespace simgrad::sim {

using presence::At;
using presence::kNoSlot;
using presence::Out;
using presence::RegionShape;
using Loop = PresencePlan::Loop;
using Scope = PresencePlan::Scope;

class ReadOrder::Rounds {
 public:
  Rounds(ReadOrder& order, std::vector<int32_t>& first_met)
      : o_(order), plan_(order.plan_), first_met_(first_met) {}

  void Run(int32_t loop) {
    const Loop& at = plan_.loop(loop);
    const auto comes = [&](int32_t slot) {
      return plan_.Given(at.parent, slot) != Presence::kNever;
    };
    for (size_t k = 0; k < at.shape->enter.size(); ++k) {
      if (comes(at.shape->enter[k])) MeetLoop(loop, static_cast<int32_t>(k));
    }
    for (size_t k = 0; k < at.shape->enter_exports.size(); ++k) {
      if (comes(at.shape->enter_exports[k])) MeetExport(loop, static_cast<int32_t>(k), false);
    }
    Repeat(loop);
  }

 private:
  // The items with which the next visit of each region of a loop begins.
  struct Pending {
    std::vector<int32_t> slots[4];
    std::vector<int32_t> leave;  // slots of the loop, met since the region around it looked
    bool comes = false;          // a cotangent of a carried value or an export
  };
  // A region being visited: items to come to, in their order.
  struct Visited {
    int32_t scope;
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> items;
  };

  bool IsNew(std::vector<int32_t>& met, int32_t at) const {
    return std::exchange(At(met, at), o_.ordering_) != o_.ordering_;
  }

  void MeetLoop(int32_t loop, int32_t slot) {
    const Loop& at = plan_.loop(loop);
    if (!IsNew(o_.joined_met_, at.first + slot)) return;
    Pending& pending = pending_[loop];
    if (slot < at.shape->carried) pending.comes = true;
    pending.leave.push_back(slot);
    for (size_t which = 0; which < 4; ++which) {
      if (at.inside[which] < 0) continue;
      pending.slots[which].push_back(At(plan_.scope(at.inside[which]).shape->in, slot));
    }
  }

  void MeetExport(int32_t loop, int32_t slot, bool from_body) {
    const Loop& at = plan_.loop(loop);
    Pending& pending = pending_[loop];
    if (!from_body) pending.comes = true;
    const int32_t to = At(at.shape->test->in_exports, slot);
    for (const auto which : {from_body ? PresencePlan::kTestInner : PresencePlan::kTestLast,
                             PresencePlan::kTestBoth}) {
      if (at.inside[which] >= 0) pending.slots[which].push_back(to);
    }
  }

  void Repeat(int32_t loop) {
    if (!pending_[loop].comes) return;
    for (bool met = true; met;) {
      met = false;
      for (size_t which = 0; which < 4; ++which) {
        const std::vector<int32_t> slots = std::exchange(pending_[loop].slots[which], {});
        if (slots.empty()) continue;
        met = true;
        VisitRegion(plan_.loop(loop).inside[which], slots);
      }
    }
  }

  void VisitRegion(int32_t scope, const std::vector<int32_t>& slots) {
    Visited visited{scope, {}};
    for (const int32_t slot : slots) Meet(visited, slot);
    const Scope& at = plan_.scope(scope);
    int32_t last = -1;
    while (!visited.items.empty()) {
      const int32_t item = visited.items.top();
      visited.items.pop();
      if (item == last) continue;
      last = item;
      const RegionShape::Item& what = At(at.shape->items, item);
      if (what.is_loop) {
        VisitLoop(visited, at.first_loop + what.index);
      } else {
        HandOn(visited, what.index);
      }
    }
  }

  void VisitLoop(Visited& visited, int32_t loop) {
    Repeat(loop);
    for (const int32_t slot : std::exchange(pending_[loop].leave, {})) {
      o_.budget_.Visit();
      Meet(visited, At(plan_.loop(loop).shape->leave, slot));
    }
  }

  void HandOn(Visited& visited, int32_t slot) {
    const Scope& at = plan_.scope(visited.scope);
    At(first_met_, at.first + slot) = next_++;
    at.shape->EachOut(slot, [&](const Out& out) {
      if (out.to == Out::To::kSlot) Meet(visited, out.slot);
    });
  }

  void Meet(Visited& visited, int32_t slot) {
    if (slot == kNoSlot) return;
    const Scope& at = plan_.scope(visited.scope);
    if (!IsNew(o_.met_, at.first + slot)) return;
    const int32_t item = At(at.shape->item_of, slot);
    if (item >= 0) visited.items.push(item);
    at.shape->EachOut(slot, [&](const Out& out) {
      o_.budget_.Visit();
      const int32_t loop = at.first_loop + out.loop;
      if (out.to == Out::To::kLoopSlot) MeetLoop(loop, out.slot);
      if (out.to == Out::To::kLoopExport) MeetExport(loop, out.slot, false);
      if (out.to == Out::To::kOwnerSlot) MeetLoop(at.owner, out.slot);
      if (out.to == Out::To::kOwnerExport) MeetExport(at.owner, out.slot, true);
    });
  }

  ReadOrder& o_;
  const PresencePlan& plan_;
  std::vector<int32_t>& first_met_;
  std::unordered_map<int32_t, Pending> pending_;
  int32_t next_ = 0;
};

void ReadOrder::Add(PresencePlan::LoopId loop, size_t depth) {
  if (orders_.size() <= depth) orders_.resize(depth + 1);
  orders_[depth].resize(plan_.slots(), 0);
  met_.resize(plan_.slots(), 0);
  joined_met_.resize(plan_.loop_slots(), 0);
  ++ordering_;
  Rounds(*this, orders_[depth]).Run(static_cast<int32_t>(loop));
}

}  // namespace simgrad::sim
