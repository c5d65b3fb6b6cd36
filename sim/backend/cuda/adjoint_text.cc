// The adjoint: slots, accumulation into gradients, loops in reverse (sim/program/loop.h).
#include "sim/backend/cuda/region_writer.h"

namespace simgrad::sim::cuda {
namespace {

ValueId FirstOf(std::initializer_list<ValueId> ids) {
  for (ValueId id : ids) {
    if (id != ValueId::kNone) return id;
  }
  return ValueId::kNone;
}

Place All(std::string_view value, int64_t count) {
  return {PlaceKind::kOne, std::string(value), count};
}

ValueId CotangentAt(std::span<const ValueId> ids, size_t k) {
  return k < ids.size() / 2 ? ids[k] : ValueId::kNone;
}

}  // namespace

void RegionWriter::Accumulate(const Op& op) {
  const size_t input = static_cast<size_t>(op.attributes.input);
  const auto found = gradients_.find(input);
  if (found == gradients_.end()) return;
  const Place value = PlaceOf(op.operands[0]);
  const Place sum = found->second.cotangent;
  const Format format = source_.numerical().policy[Role::kGradient].format;
  const bool same = source_.FormatOf(op.operands[0]) == format;
  std::vector<ValueId> masks;
  if (op.operands.size() > 1 && op.operands[1] != ValueId::kNone) masks.push_back(op.operands[1]);
  const ValueId where = op.attributes.where;
  if (where != ValueId::kNone && (masks.empty() || masks[0] != where)) masks.push_back(where);
  EachElement(sum, [&](const std::string& i) {
    std::string condition = source_.per_step(input) ? "args.steps > 0" : "";
    // A sum in memory of which no thread is the owner.
    if (sum.kind == PlaceKind::kFormula && !Speaks().empty()) {
      condition += condition.empty() ? "speaks" : " && speaks";
    }
    for (ValueId mask : masks) {
      if (!condition.empty()) condition += " && ";
      condition += Executed(mask, value.count, i);
    }
    const std::string added =
        same ? Cat(LaneText(format), "::Add(", sum[i], ", ", value[i], ")")
             : Cat("static_cast<", LaneText(format), "::Carrier>(precision::Add(",
                   FormatText(format), ", ", sum[i], ", ", value[i], "))");
    return Cat(condition.empty() ? "" : Cat("if (", condition, ") "), "Accumulate(", sum[i], ", ",
               added, ", ", found->second.mask["0"], ", bad);", CommentOf(op));
  });
}

SlotPlace RegionWriter::NewSlot(const std::string& name, std::initializer_list<ValueId> types) {
  const ValueId type = FirstOf(types);
  if (type == ValueId::kNone) return {};
  const int64_t count = source_.Count(type);
  SlotPlace slot;
  slot.cotangent = NewVariable(Cat(name, "_ct"), CarrierOf(source_.At(type)), count);
  slot.mask = NewVariable(Cat(name, "_mask"), Carrier::kBool, count);
  return slot;
}

SlotPlace RegionWriter::ReadSlot(const SlotList& list, size_t k) {
  SlotPlace slot;
  if (list.cotangents[k] == ValueId::kNone) return slot;
  slot.cotangent = PlaceOf(list.cotangents[k]);
  slot.mask =
      list.masks[k] == ValueId::kNone ? All("true", slot.cotangent.count) : PlaceOf(list.masks[k]);
  return slot;
}

void RegionWriter::InitSlot(const SlotPlace& to, const SlotPlace& from) {
  if (!to.cotangent.set()) return;
  const int64_t count = to.cotangent.count;
  const bool present = from.cotangent.set();
  Copy(to.cotangent, present ? from.cotangent : All("0", count));
  Copy(to.mask, present ? from.mask : All("false", count));
}

void RegionWriter::BindSlots(std::span<const ValueId> args, const std::vector<SlotPlace>& slots) {
  const SlotList list = SlotList::Of(args);
  for (size_t k = 0; k < list.size(); ++k) {
    const ValueId id = list.cotangents[k];
    if (id == ValueId::kNone) continue;
    const bool present = slots[k].cotangent.set();
    const std::string zero = Cat("static_cast<", source_.CType(id), ">(0)");
    SetPlace(id, present ? slots[k].cotangent : All(zero, source_.Count(id)));
    if (list.masks[k] == ValueId::kNone) continue;
    SetPlace(list.masks[k], present ? slots[k].mask : All("false", source_.Count(id)));
  }
}

void RegionWriter::YieldSlots(const Region& region, const std::vector<SlotPlace>& to) {
  const SlotList list = SlotList::Of(region.yields);
  std::vector<Place> targets;
  std::vector<Place> sources;
  std::vector<Carrier> carriers;
  for (size_t k = 0; k < to.size(); ++k) {
    if (!to[k].cotangent.set()) continue;
    const SlotPlace from = k < list.size() ? ReadSlot(list, k) : SlotPlace{};
    const bool present = from.cotangent.set();
    if (present) {
      targets.push_back(to[k].cotangent);
      sources.push_back(from.cotangent);
      carriers.push_back(CarrierOf(source_.At(list.cotangents[k])));
    }
    // No variable: always present.
    if (!to[k].mask.set() || to[k].mask.text == "true") continue;
    targets.push_back(to[k].mask);
    sources.push_back(present ? from.mask : All("false", to[k].mask.count));
    carriers.push_back(Carrier::kBool);
  }
  CopyAtOnce(targets, sources, carriers);
}

void RegionWriter::ReverseRegion(const Region& region, const Region& primal,
                                 const std::string& position, size_t leading,
                                 const std::vector<SlotPlace>& args,
                                 const std::vector<SlotPlace>& yields) {
  const std::string frame = Cat("f", source_.NextId());
  Line(Cat("[[maybe_unused]] const uint32_t ", frame, " = ", position, ";"));
  frames_[&primal] = frame;
  BindSlots(std::span(region.args).subspan(leading), args);
  RunRegion(region);
  YieldSlots(region, yields);
}

// Results of a reversed loop that are variables already.
void RegionWriter::JoinResults(const Op& op, const std::vector<SlotPlace>& slots) {
  BindSlots(op.results, slots);
}

void RegionWriter::WhileVjp(const Op& op) {
  const Op& loop = source_.tape().LoopOf(op.attributes.primal);
  const Region& around = source_.tape().RegionOfLoop(op.attributes.primal);
  const TapeLoop& record = *source_.tape().Of(around).LoopOf(loop);
  const int64_t n = loop.attributes.elements;
  const SlotList operands = SlotList::Of(op.operands);
  std::vector<SlotPlace> given;
  for (size_t k = 0; k < operands.size(); ++k) given.push_back(ReadSlot(operands, k));
  const std::string id = Cat(source_.NextId());
  if (n == 0) {
    JoinResults(op, ReverseWhile(op, loop, record, frames_.at(&around), given, id, "0"));
    return;
  }
  const SlotList results = SlotList::Of(op.results);
  std::vector<SlotPlace> joined(results.size());
  for (size_t k = 0; k < results.size(); ++k) {
    const ValueId result = results.cotangents[k];
    if (result == ValueId::kNone) continue;
    const std::string name = Cat("r", id, "_", k);
    joined[k].cotangent =
        NewJoined(name + "_ct", CarrierOf(source_.At(result)), source_.Count(result));
    joined[k].mask = NewJoined(name + "_mask", Carrier::kBool, source_.Count(result));
  }
  const std::string element = Cat("e", id);
  const std::string frame = frames_.at(&around);
  EachMapped(n, element, false, [&] {
    std::vector<SlotPlace> own;
    for (const SlotPlace& slot : given) {
      own.push_back({ElementOf(slot.cotangent, n, element), ElementOf(slot.mask, n, element)});
    }
    const std::vector<SlotPlace> out = ReverseWhile(op, loop, record, frame, own, id, element);
    for (size_t k = 0; k < joined.size(); ++k) {
      if (!joined[k].cotangent.set()) continue;
      const SlotPlace to{ElementOf(joined[k].cotangent, n, element),
                         ElementOf(joined[k].mask, n, element)};
      const SlotPlace from = k < out.size() ? out[k] : SlotPlace{};
      const bool present = from.cotangent.set();
      EachElement(to.cotangent, [&](const std::string& i) {
        return Cat(to.cotangent[i], " = ", present ? from.cotangent[i] : "0", ";");
      });
      EachElement(to.mask, [&](const std::string& i) {
        return Cat(to.mask[i], " = ", present ? from.mask[i] : "false", ";");
      });
    }
  });
  crossed_ = true;
  for (size_t k = 0; k < joined.size(); ++k) {
    if (!joined[k].cotangent.set()) continue;
    joined[k].cotangent =
        TakeJoined(joined[k].cotangent, CarrierOf(source_.At(results.cotangents[k])));
    joined[k].mask = TakeJoined(joined[k].mask, Carrier::kBool);
  }
  JoinResults(op, joined);
}

// A while in reverse: which forward loop, where its frames are, and the slots that move through it.
struct RegionWriter::ReverseLoop {
  const Op& op;
  const Op& loop;
  const TapeLoop& record;
  std::string id;
  size_t carried = 0;
  size_t exports = 0;
  int64_t test_units = 0;
  int64_t units = 0;               // of a test and a body
  std::vector<SlotPlace> moving;   // carried, captures
  std::vector<SlotPlace> outside;  // what the exports of the last test receive from outside
  bool cap_first() const { return loop.attributes.cap_order == CapOrder::kCapFirst; }

  // The moving slots with others between the carried ones and the captures.
  std::vector<SlotPlace> With(std::initializer_list<const std::vector<SlotPlace>*> between) const {
    const auto captures = moving.begin() + static_cast<std::ptrdiff_t>(carried);
    std::vector<SlotPlace> slots(moving.begin(), captures);
    for (const auto* list : between) slots.insert(slots.end(), list->begin(), list->end());
    slots.insert(slots.end(), captures, moving.end());
    return slots;
  }
  // Where the frame of the test (or, `behind` it, the body) of iteration i is.
  std::string Position(const std::string& i, int64_t behind) const {
    if (record.chained) return Cat("at", id);
    return Cat("at", id, " + static_cast<uint32_t>(", i, ") * ", units, " + ", behind);
  }
};

void RegionWriter::InitMoving(ReverseLoop& reverse, const std::vector<SlotPlace>& given) {
  const Region& body = reverse.op.regions[0];
  const Region& inner = reverse.op.regions[1];
  const Region& last = reverse.op.regions[2];
  const size_t c = reverse.carried;
  const size_t e = reverse.exports;
  for (size_t k = 0; k + e < given.size(); ++k) {
    const size_t in_test = k < c ? k : k + e;
    reverse.moving.push_back(
        NewSlot(Cat("s", reverse.id, "_", k),
                {CotangentAt(body.args, k), CotangentAt(last.args, in_test),
                 CotangentAt(inner.args, in_test), CotangentAt(inner.yields, k),
                 CotangentAt(last.yields, k), CotangentAt(body.yields, in_test)}));
    InitSlot(reverse.moving.back(), given[in_test]);
  }
  for (size_t k = c; k < c + e; ++k) reverse.outside.push_back(given[k]);
}

// Frames that are linked: on to the one before.
void RegionWriter::StepBack(const ReverseLoop& reverse) {
  if (!reverse.record.chained) return;
  Line(Cat("at", reverse.id, " = tape.Load<uint32_t>(at", reverse.id, ", 0);"));
}

std::vector<SlotPlace> RegionWriter::ReverseWhile(const Op& op, const Op& loop,
                                                  const TapeLoop& record, const std::string& frame,
                                                  const std::vector<SlotPlace>& given,
                                                  const std::string& id, const std::string& run) {
  ReverseLoop reverse{op,
                      loop,
                      record,
                      id,
                      static_cast<size_t>(op.attributes.carried),
                      static_cast<size_t>(CountsOf(loop).exports),
                      0,
                      0,
                      {},
                      {}};
  reverse.test_units = source_.tape().Of(loop.regions[0]).units;
  reverse.units = reverse.test_units + source_.tape().Of(loop.regions[1]).units;
  const std::string at = Cat(frame, " + ", record.offset, " + ", run, " * ", record.units_per_run);
  Line(Cat("const int32_t it", id, " = static_cast<int32_t>(tape.Load<uint32_t>(", at,
           ", 0));  // reverse of ", loop.attributes.site));
  Line(Cat("[[maybe_unused]] uint32_t at", id, " = tape.Load<uint32_t>(", at, ", 1);"));
  InitMoving(reverse, given);
  // The last test of a loop that looks at its cap first was not number `it` where it was capped.
  body_.Open(reverse.cap_first() ? Cat("if (it", id, " < ", CapOf(loop), ")") : "");
  dirty_ = true;
  ReverseRegion(op.regions[2], loop.regions[0], reverse.Position(Cat("it", id), 0), 0,
                reverse.With({&reverse.outside}), reverse.moving);
  StepBack(reverse);
  EndIteration();
  body_.Close();
  const std::string i = Cat("i", id);
  body_.Open(Cat("for (int32_t ", i, " = it", id, " - 1; ", i, " >= 0; --", i, ")"));
  dirty_ = true;
  ReverseIteration(reverse, i);
  EndIteration();
  body_.Close();
  dirty_ = true;
  crossed_ = true;
  return reverse.moving;
}

// The body of iteration i, then its test.
void RegionWriter::ReverseIteration(const ReverseLoop& reverse, const std::string& i) {
  const Op& op = reverse.op;
  const Op& loop = reverse.loop;
  const size_t c = reverse.carried;
  std::vector<SlotPlace> from_body;
  for (size_t k = 0; k < reverse.exports; ++k) {
    from_body.push_back(NewSlot(
        Cat("b", reverse.id, "_", k),
        {CotangentAt(op.regions[1].args, c + k), CotangentAt(op.regions[0].yields, c + k)}));
    InitSlot(from_body.back(), {});
  }
  ReverseRegion(op.regions[0], loop.regions[1], reverse.Position(i, reverse.test_units), 0,
                reverse.moving, reverse.With({&from_body}));
  StepBack(reverse);
  const bool both = reverse.cap_first() && op.regions.size() > 3 && !op.regions[3].yields.empty();
  if (both) {
    const std::string it = Cat("it", reverse.id);
    body_.Open(Cat("if (", it, " == ", CapOf(loop), " && ", i, " == ", it, " - 1)"));
    dirty_ = true;
    ReverseRegion(op.regions[3], loop.regions[0], reverse.Position(i, 0), 0,
                  reverse.With({&reverse.outside, &from_body}), reverse.moving);
    EndIteration();
    body_.Close();
  }
  body_.Open(both ? "else" : "");
  dirty_ = true;
  ReverseRegion(op.regions[1], loop.regions[0], reverse.Position(i, 0), 0,
                reverse.With({&from_body}), reverse.moving);
  body_.Close();
  StepBack(reverse);
}

// Before a scope is left whose statements may run again.
void RegionWriter::EndIteration() {
  if (source_.block() && !in_element_ && crossed_) Barrier();
}

void RegionWriter::ForVjp(const Op& op) {
  const Op& loop = source_.tape().LoopOf(op.attributes.primal);
  const Region& around = source_.tape().RegionOfLoop(op.attributes.primal);
  const TapeLoop& record = *source_.tape().Of(around).LoopOf(loop);
  const SlotList operands = SlotList::Of(op.operands);
  const Region& body = op.regions[0];
  const std::string id = Cat(source_.NextId());
  const std::span<const ValueId> args = std::span(body.args).subspan(1);
  Line(Cat("[[maybe_unused]] uint32_t at", id, " = tape.Load<uint32_t>(", frames_.at(&around),
           " + ", record.offset, ", 1);  // reverse of a for"));
  std::vector<SlotPlace> moving;
  for (size_t k = 0; k < operands.size(); ++k) {
    moving.push_back(
        NewSlot(Cat("s", id, "_", k), {CotangentAt(args, k), CotangentAt(body.yields, k),
                                       operands.cotangents[k], CotangentAt(op.results, k)}));
    InitSlot(moving.back(), ReadSlot(operands, k));
  }
  const std::string i = Cat("i", id);
  const int64_t units = source_.tape().Of(loop.regions[0]).units;
  body_.Open(Cat("for (int32_t ", i, " = ", CapOf(loop), " - 1; ", i, " >= 0; --", i, ")"));
  dirty_ = true;
  if (body.args[0] != ValueId::kNone) SetPlace(body.args[0], {PlaceKind::kOne, i, 1});
  const std::string position =
      record.chained ? Cat("at", id) : Cat("at", id, " + static_cast<uint32_t>(", i, ") * ", units);
  ReverseRegion(body, loop.regions[0], position, 1, moving, moving);
  if (record.chained) Line(Cat("at", id, " = tape.Load<uint32_t>(at", id, ", 0);"));
  EndIteration();
  body_.Close();
  dirty_ = true;
  crossed_ = true;
  JoinResults(op, moving);
}

}  // namespace simgrad::sim::cuda
