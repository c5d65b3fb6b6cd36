// Sites: what an instance decides, and what is recorded of it.
#include "sim/backend/cuda/region_writer.h"
#include "sim/program/compared_sum.h"

namespace simgrad::sim::cuda {
namespace {

using enum OpCode;

const Op* ProducerIn(const Region& region, ValueId id) {
  for (const Op& op : region.ops) {
    for (ValueId result : op.results) {
      if (result == id) return &op;
    }
  }
  return nullptr;
}

}  // namespace

std::string RegionWriter::ExtraMagnitude(ValueId id, const Region& region,
                                         const std::string& index) {
  const Op* sum =
      ComparedSum(source_.program(), id, [&](ValueId value) { return ProducerIn(region, value); });
  if (sum == nullptr) return "";
  const auto operand = [&](size_t k) { return PlaceOf(sum->operands[k])[index]; };
  const auto magnitude = [&](size_t k) {
    return Cat("precision::Abs(static_cast<double>(", operand(k), "))");
  };
  if (sum->code == kFma) {
    return Cat("LargerMagnitude(", magnitude(0), " * ", magnitude(1), ", ", operand(2), ")");
  }
  return Cat("LargerMagnitude(", operand(0), ", ", operand(1), ")");
}

std::string RegionWriter::DistanceText(ValueId lhs, ValueId rhs, const Region& region,
                                       const std::string& index) {
  const std::string a = PlaceOf(lhs)[index];
  const std::string b = PlaceOf(rhs)[index];
  if (!source_.IsReal(lhs)) return Cat("IntegerDistance(", a, ", ", b, ")");
  const std::string first = ExtraMagnitude(lhs, region, index);
  const std::string second = ExtraMagnitude(rhs, region, index);
  std::string extra = first.empty() ? second : first;
  if (extra.empty()) extra = CarrierOf(source_.At(lhs)) == Carrier::kF64 ? "0.0" : "0.0f";
  if (!first.empty() && !second.empty()) extra = Cat("LargerMagnitude(", first, ", ", second, ")");
  return Cat("DistanceOf<", FormatText(source_.FormatOf(lhs)), ">(", a, ", ", b, ", ", extra, ")");
}

void RegionWriter::Event(const Op& op) {
  const ValueId id = op.results[0];
  const bool guarded = op.operands.size() > 2;
  const Place a = PlaceOf(op.operands[0]);
  const Place b = PlaceOf(op.operands[1]);
  const Place guard = guarded ? PlaceOf(op.operands[2]) : Place{};
  Define(id, Cat("  // event ", op.attributes.site), [&](const std::string& i) {
    std::string held = ComparedText(op.attributes.comparison, a[i], b[i]);
    if (op.attributes.comparison == Comparison::kNe) held = Cat("(", held, ")");
    return guarded ? Cat(guard[i], " && ", held) : held;
  });
  if (!mode_.decides) return;
  const SiteText& site = source_.SiteOf(op.attributes.site);
  const Place value = PlaceOf(id);
  const std::string recorder = Cat("event_", site.name);
  // Where all threads compute the same, one records.
  const bool alone = value.kind != PlaceKind::kSpread;
  body_.Open(Cat("if (", alone ? Speaking("records") : "records", ")"));
  EachElement(value, [&](const std::string& i) {
    std::string element = element_;
    if (value.count != 1) {
      element = element_ == kFirst ? i : Cat("(", element_, " * ", value.count, " + ", i, ")");
    }
    std::string last = "0";
    if (site.elements != 1) {
      last = source_.block() ? element : Cat(element, " * args.instances + instance");
    }
    const std::string distance = DistanceText(op.operands[0], op.operands[1], *regions_.back(), i);
    return Cat("DecideEvent(", recorder, ", ", site.hash, ", t, ", iteration_, ", ", element, ", ",
               guarded ? guard[i] : "true", ", ", distance, ", ", value[i], ", rank, last_",
               recorder, "[", last, "], first_", recorder, ", signature);");
  });
  body_.Close();
}

// After a test was evaluated and its variable held<id> was set.
void RegionWriter::TestRecord(const Op& op, const std::string& id, const Region& test) {
  RecordTest(op, id, DistanceText(test.yields[0], test.yields[1], test, "0"), Cat("held", id));
}

// The same for the entry test, whose variable is enters<id>; a run ends there where it does not
// hold.
void RegionWriter::EntryRecord(const Op& op, const std::string& id, const Region& test) {
  RecordTest(op, id, DistanceText(test.yields[0], test.yields[2], test, "0"), Cat("!enters", id));
}

void RegionWriter::RecordTest(const Op& op, const std::string& id, const std::string& distance,
                              const std::string& ends) {
  if (!mode_.decides) return;
  const SiteText& site = source_.SiteOf(op.attributes.site);
  Line(Cat("if (", Speaking("records"), ") run", id, ".Test(loop_", site.name, ", ", distance, ", ",
           ends, ", args.near_band_ulps, rank);"));
}

void RegionWriter::EndRecord(const Op& op, const std::string& id) {
  if (!mode_.decides) return;
  const SiteText& site = source_.SiteOf(op.attributes.site);
  const std::string loop = Cat("loop_", site.name);
  Line(Cat("if (", Speaking("records"), ") {"));
  Line(Cat("  EndRun(", loop, ", slot.termination[", site.index, "], run", id, ", it", id, ", why",
           id, ", static_cast<double>(lhs", id, "));"));
  Line(Cat("  signature += LoopHash(", site.hash, ", t, ", iteration_, ", ", element_, ", it", id,
           ", why", id, ");"));
  Line("}");
  Line(Cat("if (", Speaking("tells"), ") ran[", site.index, "].EndRun(it", id, ", why", id, ");"));
}

}  // namespace simgrad::sim::cuda
