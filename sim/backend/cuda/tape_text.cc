// What the replay leaves on the tape, and what the adjoint reads from it.
#include "sim/backend/cuda/region_writer.h"
#include "sim/program/detect.h"

namespace simgrad::sim::cuda {
namespace {

using enum OpCode;

std::string BitsText(const TapeEntry& entry) {
  if (entry.real) return Cat("TapeCode<", FormatText(entry.stored), ">::Bits");
  return Cat("uint", entry.bits, "_t");
}

// The bits of a real number as they lie on the tape.
std::string StoredText(const TapeEntry& entry, const std::string& x) {
  if (!entry.narrows) return Cat("Keep<", FormatText(entry.stored), ">(", x, ")");
  return Cat("Note<", FormatText(entry.stored), ">(", x, ", ", OverflowText(entry.overflow), ")");
}

}  // namespace

std::string RegionWriter::TakeUnits(int64_t units) const {
  if (source_.block() && in_element_) {
    return Cat("static_cast<uint32_t>(atomicAdd(tape_top, ", units, "ull))");
  }
  return Cat("tape.Take(", units, ")");
}

RegionWriter::Chain RegionWriter::OpenChain(const Op& op, const std::string& id) {
  Chain chain;
  const Region& region = *regions_.back();
  if (!UsesTape() || !frames_.contains(&region)) return chain;
  chain.record = source_.tape().Of(region).LoopOf(op);
  if (chain.record == nullptr) return chain;
  chain.position = Cat("chain", id);
  Line(chain.record->chained
           ? Cat("uint32_t ", chain.position, " = 0;")
           : Cat("const uint32_t ", chain.position, " = static_cast<uint32_t>(tape.top);"));
  return chain;
}

// Behind a loop: its count and where its frames are, into the frame of the region around.
void RegionWriter::CloseChain(const Op& op, const Chain& chain, const std::string& run,
                              const std::string& iterations) {
  for (const Region& nested : op.regions) frames_.erase(&nested);
  if (chain.record == nullptr) return;
  if (mode_.tape != RunMode::TapeUse::kStore) {
    return Line(Cat("(void)", chain.position, ";"));
  }
  const std::string at = Cat(frames_.at(regions_.back()), " + ", chain.record->offset, " + ", run,
                             " * ", chain.record->units_per_run);
  const std::string speaks = Speaks();
  if (!speaks.empty()) body_.Open(Cat("if (", speaks, ")"));
  Line(Cat("tape.Store<uint32_t>(", at, ", 0, static_cast<uint32_t>(", iterations, "));"));
  Line(Cat("tape.Store<uint32_t>(", at, ", 1, ", chain.position, ");"));
  if (!speaks.empty()) body_.Close();
}

void RegionWriter::OpenFrame(const Region& region, const Chain& chain) {
  frames_.erase(&region);
  if (chain.record == nullptr) return;
  OpenTopFrame(region, chain.record->chained ? chain.position : "");
}

void RegionWriter::OpenTopFrame(const Region& region, const std::string& link) {
  const TapeFrame& frame = source_.tape().Of(region);
  if (frame.units == 0) {
    frames_[&region] = "0u";
    return;
  }
  const std::string name = Cat("f", source_.NextId());
  frames_[&region] = name;
  Line(Cat("[[maybe_unused]] const uint32_t ", name, " = ", TakeUnits(frame.units), ";"));
  if (link.empty()) return;
  if (mode_.tape == RunMode::TapeUse::kStore) {
    Line(Cat(Speaks().empty() ? "" : "if (speaks) ", "tape.Store<uint32_t>(", name, ", 0, ", link,
             ");"));
  }
  Line(Cat(link, " = ", name, ";"));
}

void RegionWriter::StoreTaped(ValueId id) {
  if (!regions_.empty()) StoreTapedIn(*regions_.back(), id);
}

void RegionWriter::StoreTapedArgs(const Region& region) {
  for (ValueId id : region.args) {
    if (id != ValueId::kNone) StoreTapedIn(region, id);
  }
}

void RegionWriter::StoreTapedIn(const Region& region, ValueId id) {
  if (mode_.tape != RunMode::TapeUse::kStore) return;
  const auto frame = frames_.find(&region);
  if (frame == frames_.end()) return;
  for (const TapeEntry& entry : source_.tape().Of(region).entries) {
    if (entry.primal != id) continue;
    const Place place = PlaceOf(id);
    const std::string bits = BitsText(entry);
    // An expression for all elements is spread as an array would be.
    Place elements = place;
    if (place.kind == PlaceKind::kOne || place.kind == PlaceKind::kFormula) {
      elements.kind = Spreads(place.count) ? PlaceKind::kSpread : PlaceKind::kPrivate;
    }
    const bool alone = elements.kind != PlaceKind::kSpread && !Speaks().empty();
    const bool dirty = dirty_;
    EachElement(elements, [&](const std::string& i) {
      const std::string value =
          entry.real ? StoredText(entry, place[i]) : Cat("static_cast<", bits, ">(", place[i], ")");
      return Cat(alone ? "if (speaks) " : "", "tape.Store<", bits, ">(", frame->second, " + ",
                 entry.offset, ", ", i, ", ", value, ");");
    });
    dirty_ = dirty;  // the tape is read behind a barrier of its own
  }
}

std::string RegionWriter::RangesOf(Role role) {
  const std::string name = RangesName(role);
  if (range_roles_.insert(static_cast<int>(role)).second)
    kernel_.Line(Cat("RangeTally ", name, ";"));
  return name;
}

// What is not on the tape because it is the same at every step goes through the same rounding.
void RegionWriter::Tape(const Op& op) {
  const ValueId id = op.results[0];
  const ValueId primal = op.attributes.primal;
  const bool constant = source_.IsConstant(primal);
  const Overflow overflow = OverflowInForce(source_.numerical().policy, op);
  const Region& home = *source_.tape().HomeOf(primal, adjoint_of_);
  const TapeEntry entry =
      constant ? EntryFor(source_.numerical(), op)
               : source_.tape().EntryOf(home, primal, source_.FormatOf(id), overflow);
  const std::string x = constant ? PlaceOf(primal)["0"] : "";
  const auto load = [&](const std::string& i) {
    if (constant && !entry.real) return x;
    if (constant) return StoredText(entry, x);
    return Cat("tape.Load<", BitsText(entry), ">(", frames_.at(&home), " + ", entry.offset, ", ", i,
               ")");
  };
  const std::string comment =
      Cat(constant ? "  // constant " : "  // tape of ", source_.Name(primal));
  if (!entry.real) {
    return Define(id, comment, [&](const std::string& i) {
      return Cat("static_cast<", source_.CType(id), ">(", load(i), ")");
    });
  }
  if (!entry.narrows) {
    const std::string mode = overflow == Overflow::kIeee ? "" : Cat(", ", OverflowText(overflow));
    return Define(id, comment, [&](const std::string& i) {
      return Cat(LaneText(entry.to), "::Round(Kept<", FormatText(entry.stored), ">(", load(i), ")",
                 mode, ")");
    });
  }
  const auto note = [&](const std::string& i) {
    return Cat("FromNote<", FormatText(entry.stored), ">(", load(i), ")");
  };
  Define(id, comment, [&](const std::string& i) { return Cat(note(i), ".value"); });
  if (!mode_.counts_ranges) return;
  const Place place = PlaceOf(id);
  const bool alone = place.kind != PlaceKind::kSpread && !Speaks().empty();
  const ValueId where = op.attributes.where;
  EachElement(place, [&](const std::string& i) {
    std::string condition = alone ? "counts && speaks" : "counts";
    if (where != ValueId::kNone) condition += Cat(" && ", Executed(where, place.count, i));
    return Cat("if (", condition, ") CountTaped(", RangesOf(op.role), ", ", note(i), ");");
  });
}

}  // namespace simgrad::sim::cuda
