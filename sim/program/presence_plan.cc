#include "sim/program/presence_plan.h"

#include <algorithm>
#include <utility>

namespace simgrad::sim {

using presence::At;
using presence::kNoSlot;
using presence::Out;

namespace {

constexpr uint8_t kNotGiven = 0xFF;

Presence Masked(Presence presence) {
  return presence == Presence::kAlways ? Presence::kMasked : presence;
}

// The presence of what leaves a loop through a slot.
Presence Leaving(const presence::LoopShape& shape, size_t slot, Presence presence) {
  const bool masks = shape.masks_carried && static_cast<int32_t>(slot) < shape.carried;
  return masks ? Masked(presence) : presence;
}

}  // namespace

int32_t PresencePlan::NewScope(const RegionShape& shape, int32_t owner) {
  for (int32_t slot = 0; slot <= shape.slots; ++slot) budget_.Search();
  const int32_t id = static_cast<int32_t>(scopes_.size());
  const int32_t first = static_cast<int32_t>(always_.size());
  const size_t slots = always_.size() + static_cast<size_t>(shape.slots);
  always_.resize(slots, 0);
  masked_.resize(slots, 0);
  given_.resize(slots, kNotGiven);
  scopes_.push_back({&shape, first, static_cast<int32_t>(loops_.size()), owner});
  for (const LoopShape& loop : shape.loops) NewLoop(loop, id);
  return id;
}

int32_t PresencePlan::NewLoop(const LoopShape& shape, int32_t parent) {
  for (int32_t slot = 0; slot <= shape.slots; ++slot) budget_.Search();
  loops_.push_back({&shape, parent, static_cast<int32_t>(joined_.size())});
  joined_.resize(joined_.size() + static_cast<size_t>(shape.slots), Presence::kNever);
  joined_given_.resize(joined_.size(), Presence::kNever);
  return static_cast<int32_t>(loops_.size()) - 1;
}

// Merges the contributions to a slot.
Presence PresencePlan::Now(int32_t scope, int32_t slot) const {
  if (slot == kNoSlot) return Presence::kNever;
  const int32_t at = At(scopes_, scope).first + slot;
  if (At(always_, at) > 0) return Presence::kAlways;
  return At(masked_, at) > 0 ? Presence::kMasked : Presence::kNever;
}

Presence PresencePlan::Given(int32_t scope, int32_t slot) const {
  if (slot == kNoSlot) return Presence::kNever;
  const uint8_t given = At(given_, At(scopes_, scope).first + slot);
  return given == kNotGiven ? Presence::kNever : static_cast<Presence>(given);
}

void PresencePlan::Give(int32_t scope, int32_t slot) {
  if (slot == kNoSlot) return;
  At(given_, At(scopes_, scope).first + slot) = static_cast<uint8_t>(Now(scope, slot));
}

// Replaces one contribution to a slot.
void PresencePlan::Add(int32_t scope, int32_t slot, Presence before, Presence after) {
  if (slot == kNoSlot || before == after) return;
  budget_.Search();
  const int32_t at = At(scopes_, scope).first + slot;
  At(always_, at) += (after == Presence::kAlways) - (before == Presence::kAlways);
  At(masked_, at) += (after == Presence::kMasked) - (before == Presence::kMasked);
  const uint8_t given = At(given_, at);
  if (given == kNotGiven || Now(scope, slot) == static_cast<Presence>(given)) return;
  risen_.push_back({false, scope, slot});
}

void PresencePlan::JoinIn(int32_t loop, int32_t slot, Presence presence) {
  budget_.Search();
  Presence& joined = At(joined_, At(loops_, loop).first + slot);
  const Presence before = std::exchange(joined, Join(joined, presence));
  if (joined != before) risen_.push_back({true, loop, slot});
}

// Hands on every slot once, in the order of writing.
void PresencePlan::Visit(int32_t scope) {
  const RegionShape& shape = *At(scopes_, scope).shape;
  for (const RegionShape::Item& item : shape.items) {
    budget_.Search();
    if (item.is_loop) {
      EnterLoop(scope, At(scopes_, scope).first_loop + item.index);
    } else {
      Give(scope, item.index);
      HandOn(scope, item.index, Presence::kNever, Given(scope, item.index));
    }
  }
  for (int32_t slot : shape.out) Give(scope, slot);
  for (int32_t slot : shape.out_exports) Give(scope, slot);
  // Every yield returns to its loop, even one that is never present.
  const int32_t owner = At(scopes_, scope).owner;
  if (owner < 0) return;
  for (size_t k = 0; k < shape.out.size(); ++k) {
    JoinIn(owner, static_cast<int32_t>(k), Given(scope, shape.out[k]));
  }
}

void PresencePlan::EnterLoop(int32_t scope, int32_t loop) {
  const LoopShape& shape = *At(loops_, loop).shape;
  for (int32_t slot : shape.enter) Give(scope, slot);
  for (int32_t slot : shape.enter_exports) Give(scope, slot);
  const size_t first = static_cast<size_t>(At(loops_, loop).first);
  bool comes = false;
  for (size_t k = 0; k < shape.enter.size(); ++k) {
    const Presence presence = Given(scope, shape.enter[k]);
    joined_[first + k] = presence;
    joined_given_[first + k] = presence;
    comes = comes || (static_cast<int32_t>(k) < shape.carried && presence != Presence::kNever);
  }
  for (int32_t slot : shape.enter_exports) comes = comes || Given(scope, slot) != Presence::kNever;
  if (comes) Open(loop);
  for (size_t k = 0; k < shape.leave.size(); ++k) {
    Add(scope, shape.leave[k], Presence::kNever, Leaving(shape, k, joined_given_[first + k]));
  }
}

void PresencePlan::Open(int32_t loop) {
  At(loops_, loop).open = true;
  const LoopShape& shape = *At(loops_, loop).shape;
  OpenRegion(loop, kBody);
  if (shape.test == nullptr) return;
  OpenRegion(loop, kTestInner);
  OpenRegion(loop, kTestLast);
  if (shape.both_tests) OpenRegion(loop, kTestBoth);
}

void PresencePlan::OpenRegion(int32_t loop, Which which) {
  const LoopShape& owner = *At(loops_, loop).shape;
  const RegionShape& shape = which == kBody ? *owner.body : *owner.test;
  const int32_t scope = NewScope(shape, loop);
  At(loops_, loop).inside[which] = scope;
  const Loop& at = At(loops_, loop);
  for (size_t k = 0; k < shape.in.size(); ++k) {
    Add(scope, shape.in[k], Presence::kNever, joined_given_[static_cast<size_t>(at.first) + k]);
  }
  for (size_t k = 0; k < shape.in_exports.size(); ++k) {
    if (which != kTestLast) {
      Add(scope, shape.in_exports[k], Presence::kNever,
          Given(at.inside[kBody], owner.body->out_exports[k]));
    }
    if (which != kTestInner) {
      Add(scope, shape.in_exports[k], Presence::kNever, Given(at.parent, owner.enter_exports[k]));
    }
  }
  Visit(scope);
}

void PresencePlan::HandOn(int32_t scope, int32_t slot, Presence before, Presence after) {
  if (before == after) return;
  At(scopes_, scope).shape->EachOut(slot, [&](const Out& out) { Pass(scope, out, before, after); });
}

void PresencePlan::Pass(int32_t scope, const Out& out, Presence before, Presence after) {
  budget_.Search();
  const Scope at = At(scopes_, scope);
  const int32_t loop = at.first_loop + out.loop;
  switch (out.to) {
    case Out::To::kSlot:
      return Add(scope, out.slot, out.masks ? Masked(before) : before,
                 out.masks ? Masked(after) : after);
    case Out::To::kOwnerSlot:
      if (at.owner >= 0) JoinIn(at.owner, out.slot, after);
      return;
    case Out::To::kOwnerExport:
      return PassExport(at.owner, out.slot, true, before, after);
    case Out::To::kLoopExport:
      if (At(loops_, loop).open) return PassExport(loop, out.slot, false, before, after);
      return Open(loop);
    case Out::To::kLoopSlot: {
      JoinIn(loop, out.slot, after);
      const Loop& into = At(loops_, loop);
      if (!into.open && out.slot < into.shape->carried) Open(loop);
      return;
    }
  }
}

void PresencePlan::PassExport(int32_t loop, int32_t slot, bool from_body, Presence before,
                              Presence after) {
  const Loop at = At(loops_, loop);
  const int32_t to = At(at.shape->test->in_exports, slot);
  for (const Which which : {from_body ? kTestInner : kTestLast, kTestBoth}) {
    if (at.inside[which] >= 0) Add(at.inside[which], to, before, after);
  }
}

void PresencePlan::FollowLoop(int32_t loop, int32_t slot) {
  const Loop at = At(loops_, loop);
  const Presence after = At(joined_, at.first + slot);
  const Presence before = std::exchange(At(joined_given_, at.first + slot), after);
  if (before == after) return;
  for (const int32_t scope : at.inside) {
    if (scope >= 0) Add(scope, At(At(scopes_, scope).shape->in, slot), before, after);
  }
  if (at.shape->leave.empty()) return;
  const size_t k = static_cast<size_t>(slot);
  Add(at.parent, At(at.shape->leave, slot), Leaving(*at.shape, k, before),
      Leaving(*at.shape, k, after));
}

void PresencePlan::Follow() {
  while (!risen_.empty()) {
    const Risen risen = risen_.back();
    risen_.pop_back();
    budget_.Search();
    if (risen.of_loop) {
      FollowLoop(risen.owner, risen.slot);
      continue;
    }
    const Presence before = Given(risen.owner, risen.slot);
    Give(risen.owner, risen.slot);
    HandOn(risen.owner, risen.slot, before, Given(risen.owner, risen.slot));
  }
}

PresencePlan::ScopeId PresencePlan::Once(const RegionShape& shape,
                                         const std::vector<Presence>& entered,
                                         std::vector<Presence>* left) {
  const int32_t scope = NewScope(shape, -1);
  for (size_t k = 0; k < entered.size(); ++k) {
    Add(scope, shape.entered[k], Presence::kNever, entered[k]);
  }
  Visit(scope);
  Follow();
  if (left != nullptr) {
    left->clear();
    for (const int32_t slot : shape.out) left->push_back(Now(scope, slot));
  }
  return static_cast<ScopeId>(scope);
}

PresencePlan::ScopeId PresencePlan::Repeated(const RegionShape& shape,
                                             const std::vector<Presence>& entered,
                                             std::vector<Presence>& carried) {
  repeats_.push_back(std::make_unique<LoopShape>());
  LoopShape& repeat = *repeats_.back();
  repeat.slots = repeat.carried = static_cast<int32_t>(carried.size());
  const int32_t loop = NewLoop(repeat, -1);
  const int64_t first = At(loops_, loop).first;
  std::copy(carried.begin(), carried.end(), joined_.begin() + first);
  std::copy(carried.begin(), carried.end(), joined_given_.begin() + first);
  const int32_t scope = NewScope(shape, loop);
  At(loops_, loop).inside[kBody] = scope;
  for (size_t k = 0; k < entered.size(); ++k) {
    Add(scope, shape.entered[k], Presence::kNever, k < carried.size() ? carried[k] : entered[k]);
  }
  Visit(scope);
  Follow();
  std::copy_n(joined_.begin() + first, carried.size(), carried.begin());
  return static_cast<ScopeId>(scope);
}

PresencePlan::LoopId PresencePlan::LoopOf(ScopeId scope, int32_t ordinal) const {
  const int32_t loop = At(scopes_, static_cast<int32_t>(scope)).first_loop + ordinal;
  return At(loops_, loop).open ? static_cast<LoopId>(loop) : LoopId::kNone;
}

std::vector<Presence> PresencePlan::PresenceOf(LoopId loop) const {
  const Loop& at = At(loops_, static_cast<int32_t>(loop));
  const auto first = joined_.begin() + at.first;
  return {first, first + at.shape->slots};
}

PresencePlan::ScopeId PresencePlan::Inside(LoopId loop, Which which) const {
  return static_cast<ScopeId>(At(loops_, static_cast<int32_t>(loop)).inside[which]);
}

int32_t PresencePlan::ReaderOf(ScopeId scope, const Op& op, size_t& next) const {
  const Scope& at = At(scopes_, static_cast<int32_t>(scope));
  const auto& reversed = at.shape->reversed;
  const bool is_reversed = op.results.size() == 1 || op.code == OpCode::kOwnVjp;
  if (next == reversed.size() || !is_reversed) return -1;
  if (reversed[next].first != op.results[0]) return -1;
  return at.first + reversed[next++].second;
}

}  // namespace simgrad::sim
