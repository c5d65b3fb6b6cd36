#include "sim/program/presence_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "sim/op/vjp_rule.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

constexpr int32_t kNoSlot = -1;
constexpr uint8_t kNotGiven = 0xFF;

Presence Masked(Presence presence) {
  return presence == Presence::kAlways ? Presence::kMasked : presence;
}

}  // namespace

// Where the presence of a slot goes.
struct PresencePlan::Out {
  enum class To : uint8_t { kSlot, kLoopSlot, kLoopExport, kOwnerSlot, kOwnerExport };
  To to = To::kSlot;
  bool masks = false;
  int32_t loop = 0;  // ordinal
  int32_t slot = 0;
};

// A value of a region has a slot for each stretch between loops that capture it.
struct PresencePlan::RegionShape {
  struct Made {
    int32_t slot;
    Out out;
  };
  // What a visit does, in order: hands on a slot, or enters a loop.
  struct Item {
    bool is_loop;
    int32_t index;
  };
  int32_t slots = 0;
  std::vector<Item> items;
  std::vector<int32_t> item_of;  // by slot: what hands it on, or -1
  // Results of the operations that are reversed, with their slots, from the last up.
  std::vector<std::pair<ValueId, int32_t>> reversed;
  std::vector<Made> made;     // until Finish
  std::vector<size_t> begin;  // by slot: its first out, and one more at the end
  std::vector<Out> outs;
  std::vector<LoopShape> loops;
  // Slots by loop slot (carried, then captures) and by export: where the region takes and leaves
  // presence. kNoSlot: nothing can be there.
  std::vector<int32_t> in;
  std::vector<int32_t> in_exports;
  std::vector<int32_t> out;
  std::vector<int32_t> out_exports;
  std::vector<int32_t> entered;  // of a top-level region
};

struct PresencePlan::LoopShape {
  bool written = false;  // whether a cotangent can ever come into it
  bool both_tests = false;
  int32_t slots = 0;  // carried and captures
  int32_t carried = 0;
  std::vector<int32_t> enter;          // by slot, in the region around it
  std::vector<int32_t> enter_exports;  // by export
  std::vector<int32_t> leave;          // by slot
  std::unique_ptr<RegionShape> body;
  std::unique_ptr<RegionShape> test;  // null: a for
};

struct PresencePlan::Scope {
  const RegionShape* shape;
  int32_t first;       // slot
  int32_t first_loop;  // loops stand in the order of their ordinals
  int32_t owner;       // loop, or -1
  Which which;
};

struct PresencePlan::Loop {
  const LoopShape* shape;
  int32_t parent;
  int32_t first;  // slot
  bool open = false;
  int32_t inside[4] = {-1, -1, -1, -1};
};

PresencePlan::PresencePlan(const Program& program, const AdjointWriter& writer,
                           const LoopCaptures& captures, PassBudget& budget)
    : program_(program),
      writer_(writer),
      captures_(captures),
      budget_(budget),
      slot_of_(program.values.size(), kNoSlot) {}

PresencePlan::~PresencePlan() = default;

int32_t PresencePlan::NewSlot(RegionShape& shape) const { return shape.slots++; }

int32_t PresencePlan::SlotOf(RegionShape& shape, ValueId id) {
  if (!Takes(id)) return kNoSlot;
  int32_t& slot = slot_of_[Index(id)];
  if (slot == kNoSlot) slot = NewSlot(shape);
  return slot;
}

const PresencePlan::RegionShape& PresencePlan::Read(const Region& region,
                                                    const std::vector<ValueId>& entered,
                                                    const std::vector<ValueId>& left) {
  tops_.push_back(std::make_unique<RegionShape>());
  RegionShape& shape = *tops_.back();
  for (ValueId id : entered) shape.entered.push_back(SlotOf(shape, id));
  shape.in.assign(shape.entered.begin(), shape.entered.begin() + static_cast<int64_t>(left.size()));
  ReadOps(shape, region);
  for (ValueId id : left) shape.out.push_back(slot_of_[Index(id)]);
  Finish(shape);
  std::fill(slot_of_.begin(), slot_of_.end(), kNoSlot);
  return shape;
}

void PresencePlan::ReadOps(RegionShape& shape, const Region& region) {
  for (size_t i = region.ops.size(); i-- > 0;) {
    const Op& op = region.ops[i];
    budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
    if (op.code == OpCode::kWhile || op.code == OpCode::kFor) {
      ReadLoop(shape, op);
    } else {
      ReadOp(shape, op);
    }
  }
}

void PresencePlan::ReadOp(RegionShape& shape, const Op& op) {
  if (op.results.size() != 1) return;
  const int32_t from = slot_of_[Index(op.results[0])];
  if (from == kNoSlot) return;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Passage passage = PassageTo(program_, op, k);
    if (passage == Passage::kNone || !Takes(op.operands[k])) continue;
    const int32_t to = SlotOf(shape, op.operands[k]);
    shape.made.push_back({from, {Out::To::kSlot, passage == Passage::kMasked, 0, to}});
  }
  shape.items.push_back({false, from});
  shape.reversed.push_back({op.results[0], from});
}

void PresencePlan::ReadLoop(RegionShape& shape, const Op& op) {
  const bool is_while = op.code == OpCode::kWhile;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t e = is_while ? static_cast<size_t>(CountsOf(op).exports) : 0;
  const int32_t ordinal = static_cast<int32_t>(shape.loops.size());
  shape.loops.emplace_back();
  LoopShape loop;
  for (size_t k = 0; k < c + e; ++k) {
    const int32_t slot = slot_of_[Index(op.results[k])];
    (k < c ? loop.enter : loop.enter_exports).push_back(slot);
    loop.written = loop.written || slot != kNoSlot;
  }
  if (!loop.written) return;
  if (!is_while && op.attributes.max_iter == 0) {
    for (size_t k = 0; k < c; ++k) {
      if (loop.enter[k] == kNoSlot) continue;
      const int32_t to = SlotOf(shape, op.operands[k]);
      if (to != kNoSlot) shape.made.push_back({loop.enter[k], {Out::To::kSlot, false, 0, to}});
      shape.items.push_back({false, loop.enter[k]});
    }
    return;
  }
  loop.both_tests = is_while && op.attributes.cap_order == CapOrder::kCapFirst;
  loop.carried = static_cast<int32_t>(c);
  const bool mapped = op.attributes.elements > 0;
  const std::vector<ValueId>& captures = captures_.Of(op);
  const size_t x = mapped ? op.operands.size() - c : captures.size();
  loop.slots = static_cast<int32_t>(c + x);
  for (size_t k = 0; k < x; ++k) {
    loop.enter.push_back(mapped ? kNoSlot : slot_of_[Index(captures[k])]);
  }
  for (size_t k = 0; k < c + x; ++k) {
    const Out out{Out::To::kLoopSlot, false, ordinal, static_cast<int32_t>(k)};
    if (loop.enter[k] != kNoSlot) shape.made.push_back({loop.enter[k], out});
  }
  for (size_t k = 0; k < e; ++k) {
    const Out out{Out::To::kLoopExport, false, ordinal, static_cast<int32_t>(k)};
    if (loop.enter_exports[k] != kNoSlot) shape.made.push_back({loop.enter_exports[k], out});
  }
  loop.body = std::make_unique<RegionShape>();
  ReadNested(*loop.body, op, op.regions[is_while ? 1 : 0], false);
  if (is_while) {
    loop.test = std::make_unique<RegionShape>();
    ReadNested(*loop.test, op, op.regions[0], true);
  }
  // Captures were threaded through: behind the loop they have a slot of their own.
  if (!mapped) {
    for (ValueId id : captures) slot_of_[Index(id)] = NewSlot(shape);
  }
  for (size_t k = 0; k < c; ++k) loop.leave.push_back(SlotOf(shape, op.operands[k]));
  for (size_t k = 0; k < x; ++k) {
    loop.leave.push_back(SlotOf(shape, mapped ? op.operands[c + k] : captures[k]));
  }
  shape.loops.back() = std::move(loop);
  shape.items.push_back({true, ordinal});
}

void PresencePlan::ReadNested(RegionShape& shape, const Op& op, const Region& region, bool test) {
  const bool is_while = op.code == OpCode::kWhile;
  const bool mapped = op.attributes.elements > 0;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t e = is_while ? static_cast<size_t>(CountsOf(op).exports) : 0;
  const auto args = region.args.begin() + (is_while ? 0 : 1);
  std::vector<ValueId> captured = captures_.Of(op);
  if (mapped) captured.assign(args + static_cast<int64_t>(test ? c : c + e), region.args.end());
  std::vector<int32_t> outside;
  for (ValueId id : captured) {
    outside.push_back(std::exchange(slot_of_[Index(id)], kNoSlot));
  }
  for (size_t k = 0; k < c; ++k) {
    shape.in.push_back(SlotOf(shape, test ? args[static_cast<int64_t>(k)] : region.yields[k]));
  }
  for (ValueId id : captured) shape.in.push_back(SlotOf(shape, id));
  for (size_t k = 0; test && k < e; ++k) {
    const size_t first = FirstExport(op);
    shape.in_exports.push_back(SlotOf(shape, region.yields[first + k]));
  }
  ReadOps(shape, region);
  for (size_t k = 0; k < c; ++k) {
    shape.out.push_back(slot_of_[Index(args[static_cast<int64_t>(k)])]);
  }
  for (ValueId id : captured) shape.out.push_back(slot_of_[Index(id)]);
  for (size_t k = 0; is_while && !test && k < e; ++k) {
    shape.out_exports.push_back(slot_of_[Index(args[static_cast<int64_t>(c + k)])]);
  }
  Finish(shape);
  for (size_t k = 0; k < captured.size(); ++k) slot_of_[Index(captured[k])] = outside[k];
}

// Sorts what was made by slot.
void PresencePlan::Finish(RegionShape& shape) const {
  for (size_t k = 0; k < shape.out.size(); ++k) {
    const Out out{Out::To::kOwnerSlot, false, 0, static_cast<int32_t>(k)};
    if (shape.out[k] != kNoSlot) shape.made.push_back({shape.out[k], out});
  }
  for (size_t k = 0; k < shape.out_exports.size(); ++k) {
    const Out out{Out::To::kOwnerExport, false, 0, static_cast<int32_t>(k)};
    if (shape.out_exports[k] != kNoSlot) shape.made.push_back({shape.out_exports[k], out});
  }
  shape.item_of.assign(static_cast<size_t>(shape.slots), -1);
  for (size_t i = 0; i < shape.items.size(); ++i) {
    const RegionShape::Item& item = shape.items[i];
    if (!item.is_loop) {
      shape.item_of[static_cast<size_t>(item.index)] = static_cast<int32_t>(i);
      continue;
    }
    const LoopShape& loop = shape.loops[static_cast<size_t>(item.index)];
    for (const std::vector<int32_t>* slots : {&loop.enter, &loop.enter_exports}) {
      for (int32_t slot : *slots) {
        if (slot != kNoSlot) shape.item_of[static_cast<size_t>(slot)] = static_cast<int32_t>(i);
      }
    }
  }
  shape.begin.assign(static_cast<size_t>(shape.slots) + 1, 0);
  for (const RegionShape::Made& made : shape.made)
    ++shape.begin[static_cast<size_t>(made.slot) + 1];
  for (size_t i = 1; i < shape.begin.size(); ++i) shape.begin[i] += shape.begin[i - 1];
  shape.outs.resize(shape.made.size());
  std::vector<size_t> next(shape.begin.begin(), shape.begin.end() - 1);
  for (const RegionShape::Made& made : shape.made) {
    budget_.Visit();
    shape.outs[next[static_cast<size_t>(made.slot)]++] = made.out;
  }
  shape.made = {};
}

int32_t PresencePlan::NewScope(const RegionShape& shape, int32_t owner, Which which) {
  budget_.Search(1 + shape.slots);
  const int32_t id = static_cast<int32_t>(scopes_.size());
  const int32_t first = static_cast<int32_t>(always_.size());
  const size_t slots = always_.size() + static_cast<size_t>(shape.slots);
  always_.resize(slots, 0);
  masked_.resize(slots, 0);
  given_.resize(slots, kNotGiven);
  scopes_.push_back({&shape, first, static_cast<int32_t>(loops_.size()), owner, which});
  for (const LoopShape& loop : shape.loops) NewLoop(loop, id);
  return id;
}

int32_t PresencePlan::NewLoop(const LoopShape& shape, int32_t parent) {
  budget_.Search(1 + shape.slots);
  Loop loop;
  loop.shape = &shape;
  loop.parent = parent;
  loop.first = static_cast<int32_t>(joined_.size());
  joined_.resize(joined_.size() + static_cast<size_t>(shape.slots), Presence::kNever);
  joined_given_.resize(joined_.size(), Presence::kNever);
  loops_.push_back(loop);
  return static_cast<int32_t>(loops_.size()) - 1;
}

// The merge of what is contributed.
Presence PresencePlan::Now(int32_t scope, int32_t slot) const {
  if (slot == kNoSlot) return Presence::kNever;
  const size_t at = static_cast<size_t>(scopes_[static_cast<size_t>(scope)].first + slot);
  if (always_[at] > 0) return Presence::kAlways;
  return masked_[at] > 0 ? Presence::kMasked : Presence::kNever;
}

Presence PresencePlan::Given(int32_t scope, int32_t slot) const {
  if (slot == kNoSlot) return Presence::kNever;
  const size_t at = static_cast<size_t>(scopes_[static_cast<size_t>(scope)].first + slot);
  return given_[at] == kNotGiven ? Presence::kNever : static_cast<Presence>(given_[at]);
}

// One contribution to a slot changes.
void PresencePlan::Add(int32_t scope, int32_t slot, Presence before, Presence after) {
  if (slot == kNoSlot || before == after) return;
  budget_.Search();
  const size_t at = static_cast<size_t>(scopes_[static_cast<size_t>(scope)].first + slot);
  if (before == Presence::kAlways) --always_[at];
  if (before == Presence::kMasked) --masked_[at];
  if (after == Presence::kAlways) ++always_[at];
  if (after == Presence::kMasked) ++masked_[at];
  if (given_[at] == kNotGiven || Now(scope, slot) == static_cast<Presence>(given_[at])) return;
  risen_.push_back({false, scope, slot});
}

void PresencePlan::JoinIn(int32_t loop, int32_t slot, Presence presence) {
  budget_.Search();
  const size_t at = static_cast<size_t>(loops_[static_cast<size_t>(loop)].first + slot);
  const Presence before = joined_[at];
  joined_[at] = Join(before, presence);
  if (joined_[at] != before) risen_.push_back({true, loop, slot});
}

// Hands on everything once, in the order of writing.
void PresencePlan::Visit(int32_t scope) {
  const RegionShape& shape = *scopes_[static_cast<size_t>(scope)].shape;
  const auto give = [&](int32_t slot) {
    const size_t at = static_cast<size_t>(scopes_[static_cast<size_t>(scope)].first + slot);
    given_[at] = static_cast<uint8_t>(Now(scope, slot));
    return static_cast<Presence>(given_[at]);
  };
  for (const RegionShape::Item& item : shape.items) {
    budget_.Search();
    if (item.is_loop) {
      const LoopShape& loop = shape.loops[static_cast<size_t>(item.index)];
      for (const std::vector<int32_t>* slots : {&loop.enter, &loop.enter_exports}) {
        for (int32_t slot : *slots) {
          if (slot != kNoSlot) give(slot);
        }
      }
      EnterLoop(scope, item.index);
    } else {
      HandOn(scope, item.index, Presence::kNever, give(item.index));
    }
  }
  for (const std::vector<int32_t>* slots : {&shape.out, &shape.out_exports}) {
    for (int32_t slot : *slots) {
      if (slot != kNoSlot) give(slot);
    }
  }
  HandBack(scope);
}

// What a region yields comes back to its loop, what never comes as well.
void PresencePlan::HandBack(int32_t scope) {
  const Scope& at = scopes_[static_cast<size_t>(scope)];
  if (at.owner < 0) return;
  for (size_t k = 0; k < at.shape->out.size(); ++k) {
    JoinIn(at.owner, static_cast<int32_t>(k), Given(scope, at.shape->out[k]));
  }
}

void PresencePlan::EnterLoop(int32_t scope, int32_t ordinal) {
  const int32_t id = scopes_[static_cast<size_t>(scope)].first_loop + ordinal;
  const LoopShape& shape = *loops_[static_cast<size_t>(id)].shape;
  const size_t first = static_cast<size_t>(loops_[static_cast<size_t>(id)].first);
  bool comes = false;
  for (size_t k = 0; k < shape.enter.size(); ++k) {
    const Presence presence = Given(scope, shape.enter[k]);
    joined_[first + k] = presence;
    joined_given_[first + k] = presence;
    comes = comes || (static_cast<int32_t>(k) < shape.carried && presence != Presence::kNever);
  }
  for (int32_t slot : shape.enter_exports) comes = comes || Given(scope, slot) != Presence::kNever;
  if (comes) Open(id);
  for (size_t k = 0; k < shape.leave.size(); ++k) {
    Add(scope, shape.leave[k], Presence::kNever, joined_given_[first + k]);
  }
}

void PresencePlan::Open(int32_t loop) {
  loops_[static_cast<size_t>(loop)].open = true;
  const LoopShape& shape = *loops_[static_cast<size_t>(loop)].shape;
  OpenRegion(loop, kBody);
  if (shape.test == nullptr) return;
  OpenRegion(loop, kTestInner);
  OpenRegion(loop, kTestLast);
  if (shape.both_tests) OpenRegion(loop, kTestBoth);
}

void PresencePlan::OpenRegion(int32_t loop, Which which) {
  const LoopShape& owner = *loops_[static_cast<size_t>(loop)].shape;
  const RegionShape& shape = which == kBody ? *owner.body : *owner.test;
  const int32_t scope = NewScope(shape, loop, which);
  loops_[static_cast<size_t>(loop)].inside[which] = scope;
  const Loop& at = loops_[static_cast<size_t>(loop)];
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
  const RegionShape& shape = *scopes_[static_cast<size_t>(scope)].shape;
  const size_t end = shape.begin[static_cast<size_t>(slot) + 1];
  for (size_t i = shape.begin[static_cast<size_t>(slot)]; i < end; ++i) {
    Pass(scope, shape.outs[i], before, after);
  }
}

void PresencePlan::Pass(int32_t scope, const Out& out, Presence before, Presence after) {
  budget_.Search();
  const Scope at = scopes_[static_cast<size_t>(scope)];
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
      if (loops_[static_cast<size_t>(loop)].open) {
        return PassExport(loop, out.slot, false, before, after);
      }
      return Open(loop);
    case Out::To::kLoopSlot: {
      JoinIn(loop, out.slot, after);
      const Loop& into = loops_[static_cast<size_t>(loop)];
      if (!into.open && out.slot < into.shape->carried) Open(loop);
      return;
    }
  }
}

void PresencePlan::PassExport(int32_t loop, int32_t slot, bool from_body, Presence before,
                              Presence after) {
  const Loop at = loops_[static_cast<size_t>(loop)];
  const int32_t to = at.shape->test->in_exports[static_cast<size_t>(slot)];
  for (const Which which : {from_body ? kTestInner : kTestLast, kTestBoth}) {
    if (at.inside[which] >= 0) Add(at.inside[which], to, before, after);
  }
}

void PresencePlan::FollowLoop(int32_t loop, int32_t slot) {
  const Loop at = loops_[static_cast<size_t>(loop)];
  const size_t joined = static_cast<size_t>(at.first + slot);
  const Presence before = std::exchange(joined_given_[joined], joined_[joined]);
  const Presence after = joined_[joined];
  if (before == after) return;
  for (const int32_t scope : at.inside) {
    if (scope < 0) continue;
    const RegionShape& shape = *scopes_[static_cast<size_t>(scope)].shape;
    Add(scope, shape.in[static_cast<size_t>(slot)], before, after);
  }
  if (at.shape->leave.empty()) return;
  Add(at.parent, at.shape->leave[static_cast<size_t>(slot)], before, after);
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
    const size_t at =
        static_cast<size_t>(scopes_[static_cast<size_t>(risen.owner)].first + risen.slot);
    const Presence before = static_cast<Presence>(given_[at]);
    const Presence after = Now(risen.owner, risen.slot);
    given_[at] = static_cast<uint8_t>(after);
    HandOn(risen.owner, risen.slot, before, after);
  }
}

PresencePlan::ScopeId PresencePlan::Once(const RegionShape& shape,
                                         const std::vector<Presence>& entered,
                                         std::vector<Presence>* left) {
  const int32_t scope = NewScope(shape, -1, kBody);
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
  const size_t first = static_cast<size_t>(loops_[static_cast<size_t>(loop)].first);
  std::copy(carried.begin(), carried.end(), joined_.begin() + static_cast<int64_t>(first));
  std::copy(carried.begin(), carried.end(), joined_given_.begin() + static_cast<int64_t>(first));
  const int32_t scope = NewScope(shape, loop, kBody);
  loops_[static_cast<size_t>(loop)].inside[kBody] = scope;
  for (size_t k = 0; k < entered.size(); ++k) {
    Add(scope, shape.entered[k], Presence::kNever, k < carried.size() ? carried[k] : entered[k]);
  }
  Visit(scope);
  Follow();
  std::copy_n(joined_.begin() + static_cast<int64_t>(first), carried.size(), carried.begin());
  return static_cast<ScopeId>(scope);
}

PresencePlan::LoopId PresencePlan::LoopOf(ScopeId scope, int32_t ordinal) const {
  const Scope& at = scopes_[static_cast<size_t>(scope)];
  const int32_t loop = at.first_loop + ordinal;
  return loops_[static_cast<size_t>(loop)].open ? static_cast<LoopId>(loop) : LoopId::kNone;
}

std::vector<Presence> PresencePlan::PresenceOf(LoopId loop) const {
  const Loop& at = loops_[static_cast<size_t>(loop)];
  const auto first = joined_.begin() + at.first;
  return {first, first + at.shape->slots};
}

PresencePlan::ScopeId PresencePlan::Inside(LoopId loop, Which which) const {
  return static_cast<ScopeId>(loops_[static_cast<size_t>(loop)].inside[which]);
}

int32_t PresencePlan::ReaderOf(ScopeId scope, const Op& op, size_t& next) const {
  const Scope& at = scopes_[static_cast<size_t>(scope)];
  const auto& reversed = at.shape->reversed;
  if (next == reversed.size() || op.results.size() != 1) return -1;
  if (reversed[next].first != op.results[0]) return -1;
  return at.first + reversed[next++].second;
}

// The rounds, of which each visits only what the one before did not meet.
class PresencePlan::Rounds {
 public:
  Rounds(PresencePlan& plan, std::vector<int32_t>& order) : p_(plan), order_(order) {}

  void Run(int32_t loop) {
    const Loop at = p_.loops_[static_cast<size_t>(loop)];
    for (size_t k = 0; k < at.shape->enter.size(); ++k) {
      const Presence presence = p_.Given(at.parent, at.shape->enter[k]);
      if (presence != Presence::kNever) MeetLoop(loop, static_cast<int32_t>(k));
    }
    for (size_t k = 0; k < at.shape->enter_exports.size(); ++k) {
      const Presence presence = p_.Given(at.parent, at.shape->enter_exports[k]);
      if (presence != Presence::kNever) MeetExport(loop, static_cast<int32_t>(k), false);
    }
    Repeat(loop);
  }

 private:
  // What the next visit of each region of a loop begins with.
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
    return std::exchange(met[static_cast<size_t>(at)], p_.ordering_) != p_.ordering_;
  }

  void MeetLoop(int32_t loop, int32_t slot) {
    const Loop& at = p_.loops_[static_cast<size_t>(loop)];
    if (!IsNew(p_.joined_met_, at.first + slot)) return;
    Pending& pending = pending_[loop];
    if (slot < at.shape->carried) pending.comes = true;
    pending.leave.push_back(slot);
    for (size_t which = 0; which < 4; ++which) {
      if (at.inside[which] < 0) continue;
      const RegionShape& shape = *p_.scopes_[static_cast<size_t>(at.inside[which])].shape;
      pending.slots[which].push_back(shape.in[static_cast<size_t>(slot)]);
    }
  }

  void MeetExport(int32_t loop, int32_t slot, bool from_body) {
    const Loop& at = p_.loops_[static_cast<size_t>(loop)];
    Pending& pending = pending_[loop];
    if (!from_body) pending.comes = true;
    const int32_t to = at.shape->test->in_exports[static_cast<size_t>(slot)];
    for (const Which which : {from_body ? kTestInner : kTestLast, kTestBoth}) {
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
        VisitRegion(p_.loops_[static_cast<size_t>(loop)].inside[which], slots);
      }
    }
  }

  void VisitRegion(int32_t scope, const std::vector<int32_t>& slots) {
    Visited visited{scope, {}};
    for (const int32_t slot : slots) Meet(visited, slot);
    const Scope at = p_.scopes_[static_cast<size_t>(scope)];
    int32_t last = -1;
    while (!visited.items.empty()) {
      const int32_t item = visited.items.top();
      visited.items.pop();
      if (item == last) continue;
      last = item;
      const RegionShape::Item& what = at.shape->items[static_cast<size_t>(item)];
      if (what.is_loop) {
        VisitLoop(visited, at.first_loop + what.index);
      } else {
        HandOn(visited, what.index);
      }
    }
  }

  void VisitLoop(Visited& visited, int32_t loop) {
    Repeat(loop);
    const Loop& at = p_.loops_[static_cast<size_t>(loop)];
    for (const int32_t slot : std::exchange(pending_[loop].leave, {})) {
      p_.budget_.Visit();
      Meet(visited, at.shape->leave[static_cast<size_t>(slot)]);
    }
  }

  void HandOn(Visited& visited, int32_t slot) {
    const Scope& at = p_.scopes_[static_cast<size_t>(visited.scope)];
    order_[static_cast<size_t>(at.first + slot)] = next_++;
    for (size_t i = at.shape->begin[static_cast<size_t>(slot)];
         i < at.shape->begin[static_cast<size_t>(slot) + 1]; ++i) {
      const Out& out = at.shape->outs[i];
      if (out.to == Out::To::kSlot) Meet(visited, out.slot);
    }
  }

  void Meet(Visited& visited, int32_t slot) {
    if (slot == kNoSlot) return;
    const Scope& at = p_.scopes_[static_cast<size_t>(visited.scope)];
    if (!IsNew(p_.met_, at.first + slot)) return;
    const int32_t item = at.shape->item_of[static_cast<size_t>(slot)];
    if (item >= 0) visited.items.push(item);
    for (size_t i = at.shape->begin[static_cast<size_t>(slot)];
         i < at.shape->begin[static_cast<size_t>(slot) + 1]; ++i) {
      p_.budget_.Visit();
      const Out& out = at.shape->outs[i];
      if (out.to == Out::To::kLoopSlot) MeetLoop(at.first_loop + out.loop, out.slot);
      if (out.to == Out::To::kLoopExport) MeetExport(at.first_loop + out.loop, out.slot, false);
      if (out.to == Out::To::kOwnerSlot) MeetLoop(at.owner, out.slot);
      if (out.to == Out::To::kOwnerExport) MeetExport(at.owner, out.slot, true);
    }
  }

  PresencePlan& p_;
  std::vector<int32_t>& order_;
  std::unordered_map<int32_t, Pending> pending_;
  int32_t next_ = 0;
};

void PresencePlan::OrderReads(LoopId loop, size_t depth) {
  if (orders_.size() <= depth) orders_.resize(depth + 1);
  orders_[depth].resize(given_.size(), 0);
  met_.resize(given_.size(), 0);
  joined_met_.resize(joined_.size(), 0);
  ++ordering_;
  Rounds(*this, orders_[depth]).Run(static_cast<int32_t>(loop));
}

}  // namespace simgrad::sim
