#include "sim/program/presence_shape.h"

#include <algorithm>
#include <span>

#include "sim/op/vjp_rule.h"
#include "sim/program/loop.h"

namespace simgrad::sim::presence {
namespace {

int32_t Count(size_t count) { return static_cast<int32_t>(count); }

}  // namespace

ShapeReader::ShapeReader(const Program& program, const std::vector<bool>& takes,
                         const LoopCaptures& captures, PassBudget& budget)
    : program_(program),
      takes_(takes),
      captures_(captures),
      budget_(budget),
      slot_of_(program.values.size(), kNoSlot) {}

int32_t ShapeReader::SlotOf(RegionShape& shape, ValueId id) {
  if (!takes_[Index(id)]) return kNoSlot;
  int32_t& slot = slot_of_[Index(id)];
  if (slot == kNoSlot) slot = shape.slots++;
  return slot;
}

RegionShape ShapeReader::Read(const Region& region, const std::vector<ValueId>& entered,
                              const std::vector<ValueId>& left) {
  RegionShape shape;
  Reading reading{shape, {}};
  for (ValueId id : entered) shape.entered.push_back(SlotOf(shape, id));
  shape.in.assign(shape.entered.begin(), shape.entered.begin() + Count(left.size()));
  ReadOps(reading, region);
  for (ValueId id : left) shape.out.push_back(KnownSlot(id));
  Finish(reading);
  std::fill(slot_of_.begin(), slot_of_.end(), kNoSlot);
  return shape;
}

void ShapeReader::ReadOps(Reading& reading, const Region& region) {
  for (size_t i = region.ops.size(); i-- > 0;) {
    const Op& op = region.ops[i];
    budget_.Visit(1 + static_cast<int64_t>(op.operands.size() + op.results.size()));
    if (op.code == OpCode::kWhile || op.code == OpCode::kFor) {
      ReadLoop(reading, op);
    } else {
      ReadOp(reading, op);
    }
  }
}

// Among operations with several results only `own_vjp` is reversed, and only once. Each result
// reaches each operand. Several results do so through a slot of the operation that is no value's.
void ShapeReader::ReadOp(Reading& reading, const Op& op) {
  if (op.results.size() != 1 && op.code != OpCode::kOwnVjp) return;
  RegionShape& shape = reading.shape;
  std::vector<int32_t> from;
  for (ValueId id : op.results) {
    if (const int32_t slot = KnownSlot(id); slot != kNoSlot) from.push_back(slot);
  }
  if (from.empty()) return;
  shape.reversed.push_back({op.results[0], from[0]});
  if (from.size() == 1) return ReadPassages(reading, op, from[0]);
  const int32_t joined = shape.slots++;
  for (int32_t slot : from) {
    reading.made.push_back({slot, {Out::To::kSlot, false, 0, joined}});
    shape.items.push_back({false, slot});
  }
  ReadPassages(reading, op, joined);
}

void ShapeReader::ReadPassages(Reading& reading, const Op& op, int32_t from) {
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Passage passage = PassageTo(program_, op, k);
    if (passage == Passage::kNone || !takes_[Index(op.operands[k])]) continue;
    const int32_t to = SlotOf(reading.shape, op.operands[k]);
    reading.made.push_back({from, {Out::To::kSlot, passage == Passage::kMasked, 0, to}});
  }
  reading.shape.items.push_back({false, from});
}

void ShapeReader::ReadLoop(Reading& reading, const Op& op) {
  RegionShape& shape = reading.shape;
  const bool is_while = op.code == OpCode::kWhile;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  // Stacked results of a for enter as carried values do, and do not leave.
  const size_t stacked = is_while ? 0 : StackedOf(op);
  const size_t e = is_while ? static_cast<size_t>(CountsOf(op).exports) : 0;
  const int32_t ordinal = Count(shape.loops.size());
  shape.loops.emplace_back();
  LoopShape loop;
  for (size_t k = 0; k < c + stacked + e; ++k) {
    const int32_t slot = KnownSlot(op.results[k]);
    (k < c + stacked ? loop.enter : loop.enter_exports).push_back(slot);
    loop.written = loop.written || slot != kNoSlot;
  }
  if (!loop.written) return;
  if (!is_while && op.attributes.max_iter == 0) return SkipLoop(reading, op, loop);
  loop.both_tests = is_while && op.attributes.cap_order == CapOrder::kCapFirst;
  loop.carried = Count(c + stacked);
  loop.masks_carried = is_while && op.attributes.last != 0;
  const bool mapped = op.attributes.elements > 0;
  const std::span scanned = std::span(op.operands).last(static_cast<size_t>(op.attributes.scanned));
  const std::vector<ValueId> outside =
      mapped ? std::vector<ValueId>(op.operands.begin() + Count(c), op.operands.end())
             : captures_.Of(op);
  loop.slots = Count(c + stacked + outside.size() + scanned.size());
  for (ValueId id : outside) loop.enter.push_back(mapped ? kNoSlot : KnownSlot(id));
  loop.enter.insert(loop.enter.end(), scanned.size(), kNoSlot);
  const auto enters = [&](Out::To to, const std::vector<int32_t>& slots) {
    for (size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] != kNoSlot) reading.made.push_back({slots[k], {to, false, ordinal, Count(k)}});
    }
  };
  enters(Out::To::kLoopSlot, loop.enter);
  enters(Out::To::kLoopExport, loop.enter_exports);
  loop.body = ReadNested(op, op.regions[is_while ? 1 : 0], false);
  if (is_while) loop.test = ReadNested(op, op.regions[0], true);
  // Captures were threaded through: behind the loop they have a slot of their own.
  if (!mapped) {
    for (ValueId id : outside) slot_of_[Index(id)] = shape.slots++;
  }
  for (size_t k = 0; k < c; ++k) loop.leave.push_back(SlotOf(shape, op.operands[k]));
  loop.leave.insert(loop.leave.end(), stacked, kNoSlot);
  for (ValueId id : outside) loop.leave.push_back(SlotOf(shape, id));
  for (ValueId id : scanned) loop.leave.push_back(SlotOf(shape, id));
  At(shape.loops, ordinal) = std::move(loop);
  shape.items.push_back({true, ordinal});
}

// A loop that never runs hands its slots through.
void ShapeReader::SkipLoop(Reading& reading, const Op& op, const LoopShape& loop) {
  for (size_t k = 0; k < loop.enter.size(); ++k) {
    if (loop.enter[k] == kNoSlot || k >= static_cast<size_t>(op.attributes.carried)) continue;
    const int32_t to = SlotOf(reading.shape, op.operands[k]);
    if (to != kNoSlot) reading.made.push_back({loop.enter[k], {Out::To::kSlot, false, 0, to}});
    reading.shape.items.push_back({false, loop.enter[k]});
  }
}

std::unique_ptr<RegionShape> ShapeReader::ReadNested(const Op& op, const Region& region,
                                                     bool test) {
  auto nested = std::make_unique<RegionShape>();
  RegionShape& shape = *nested;
  Reading reading{shape, {}};
  const bool is_while = op.code == OpCode::kWhile;
  const size_t c = static_cast<size_t>(op.attributes.carried);
  const size_t e = is_while ? static_cast<size_t>(CountsOf(op).exports) : 0;
  const std::span args = std::span(region.args).subspan(is_while ? 0 : 1);
  const std::span<const ValueId> carried = args.first(c);
  std::vector<ValueId> captured = captures_.Of(op);
  if (op.attributes.elements > 0) {
    captured.assign(args.begin() + Count(test ? c : c + e), args.end());
  }
  std::vector<int32_t> outside;
  for (ValueId id : captured) {
    outside.push_back(std::exchange(slot_of_[Index(id)], kNoSlot));
  }
  const size_t stacked = is_while ? 0 : StackedOf(op);
  const std::span scanned = args.last(static_cast<size_t>(op.attributes.scanned));
  for (ValueId id : test ? carried : std::span(region.yields).first(c + stacked)) {
    shape.in.push_back(SlotOf(shape, id));
  }
  for (ValueId id : captured) shape.in.push_back(SlotOf(shape, id));
  for (ValueId id : scanned) shape.in.push_back(SlotOf(shape, id));
  for (size_t k = 0; test && k < e; ++k) {
    shape.in_exports.push_back(SlotOf(shape, region.yields[FirstExport(op) + k]));
  }
  ReadOps(reading, region);
  for (ValueId id : carried) shape.out.push_back(KnownSlot(id));
  shape.out.insert(shape.out.end(), stacked, kNoSlot);
  for (ValueId id : captured) shape.out.push_back(KnownSlot(id));
  for (ValueId id : scanned) shape.out.push_back(KnownSlot(id));
  for (size_t k = 0; !test && k < e; ++k) shape.out_exports.push_back(KnownSlot(args[c + k]));
  Finish(reading);
  for (size_t k = 0; k < captured.size(); ++k) slot_of_[Index(captured[k])] = outside[k];
  return nested;
}

// Sorts the outs by slot.
void ShapeReader::Finish(Reading& reading) const {
  RegionShape& shape = reading.shape;
  const auto leaves = [&](Out::To to, const std::vector<int32_t>& slots) {
    for (size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] != kNoSlot) reading.made.push_back({slots[k], {to, false, 0, Count(k)}});
    }
  };
  leaves(Out::To::kOwnerSlot, shape.out);
  leaves(Out::To::kOwnerExport, shape.out_exports);
  shape.item_of.assign(static_cast<size_t>(shape.slots), -1);
  for (size_t i = 0; i < shape.items.size(); ++i) {
    const RegionShape::Item& item = shape.items[i];
    if (!item.is_loop) {
      At(shape.item_of, item.index) = Count(i);
      continue;
    }
    const LoopShape& loop = At(shape.loops, item.index);
    for (const std::vector<int32_t>* slots : {&loop.enter, &loop.enter_exports}) {
      for (int32_t slot : *slots) {
        if (slot != kNoSlot) At(shape.item_of, slot) = Count(i);
      }
    }
  }
  shape.begin.assign(static_cast<size_t>(shape.slots) + 1, 0);
  for (const auto& [slot, out] : reading.made) ++At(shape.begin, slot + 1);
  for (size_t i = 1; i < shape.begin.size(); ++i) shape.begin[i] += shape.begin[i - 1];
  shape.outs.resize(reading.made.size());
  std::vector<size_t> next(shape.begin.begin(), shape.begin.end() - 1);
  for (const auto& [slot, out] : reading.made) {
    budget_.Visit();
    shape.outs[At(next, slot)++] = out;
  }
}

}  // namespace simgrad::sim::presence
