#include "sim/backend/cuda/region_writer.h"

#include <utility>

namespace simgrad::sim::cuda {
namespace {

using enum OpCode;

// Arrays of inputs up to this many elements are read once per instance.
constexpr int64_t kLargestPrivateInput = 16;

bool IsSplat(const std::vector<double>& literal) { return literal.size() == 1; }

}  // namespace

std::string Place::operator[](const std::string& index) const {
  if (kind == PlaceKind::kOne) return text;
  if (kind != PlaceKind::kFormula) return Cat(text, "[", index, "]");
  std::string written;
  for (char c : text) {
    if (c == '#') {
      written += Cat("(", index, ")");
    } else {
      written += c;
    }
  }
  return written;
}

void RegionWriter::RunRegion(const Region& region) {
  regions_.push_back(&region);
  for (const Op& op : region.ops) {
    const bool hoists = hoists_ && !op.results.empty() && op.results[0] != ValueId::kNone &&
                        source_.IsConstant(op.results[0]);
    hoists ? Hoist(op) : Operation(op);
  }
  regions_.pop_back();
}

void RegionWriter::Barrier() {
  Line("__syncthreads();");
  dirty_ = false;
  crossed_ = false;
}

void RegionWriter::CrossRead(const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (place.kind != PlaceKind::kSpread) continue;
    if (dirty_) Barrier();
    crossed_ = true;
  }
}

void RegionWriter::Rewrite(const Place& place) {
  if (place.kind != PlaceKind::kSpread) return;
  if (crossed_) Barrier();
  dirty_ = true;
}

Place RegionWriter::NewVariable(const std::string& name, Carrier carrier, int64_t count) {
  const std::string type = CTypeOf(carrier);
  if (count == 1) {
    Line(Cat(type, " ", name, ";"));
    return {PlaceKind::kOne, name, 1};
  }
  if (!Spreads(count)) {
    Line(Cat(type, " ", name, "[", std::max<int64_t>(count, 1), "];"));
    return {PlaceKind::kPrivate, name, count};
  }
  const int64_t at = source_.TakeWorkspace(8 * count);
  Line(Cat(type, "* const ", name, " = reinterpret_cast<", type, "*>(work + ", at, ");"));
  return {PlaceKind::kSpread, name, count};
}

void RegionWriter::EachElement(const Place& place, const Indexed& statement) {
  if (place.count == 0) return;
  if (place.count == 1) return Line(statement("0"));
  const bool spread = place.kind == PlaceKind::kSpread;
  Line(Cat("for (int e = ", spread ? "threadIdx.x" : "0", "; e < ", place.count,
           spread ? "; e += blockDim.x) " : "; ++e) ", statement("e")));
  if (spread) dirty_ = true;
}

void RegionWriter::Copy(const Place& to, const Place& from) {
  if (!to.set() || to.text == from.text) return;
  Rewrite(to);
  EachElement(to, [&](const std::string& i) { return Cat(to[i], " = ", from[i], ";"); });
}

void RegionWriter::CopyAtOnce(const std::vector<Place>& to, const std::vector<Place>& from,
                              const std::vector<Carrier>& carriers) {
  std::vector<Place> sources = from;
  for (size_t k = 0; k < from.size(); ++k) {
    bool overwritten = false;
    for (size_t j = 0; j < k; ++j) {
      overwritten |= to[j].set() && from[k].set() && from[k].text.find(to[j].text) == 0;
    }
    if (!overwritten) continue;
    sources[k] = NewVariable(Cat("held", source_.NextId()), carriers[k], from[k].count);
    Copy(sources[k], from[k]);
  }
  for (size_t k = 0; k < to.size(); ++k) {
    if (sources[k].set()) Copy(to[k], sources[k]);
  }
}

std::string RegionWriter::Speaking(const std::string& condition) const {
  const std::string speaks = Speaks();
  return speaks.empty() ? condition : Cat(condition, " && ", speaks);
}

const Place& RegionWriter::PlaceOf(ValueId id) {
  Place& place = places_[Index(id)];
  if (!place.set()) {
    if (const Input* input = source_.InputOf(id)) place = InputPlace(*input);
  }
  return place;
}

Place RegionWriter::InputPlace(const Input& input) {
  const Value& value = source_.At(input.value);
  const std::string type = CTypeOf(CarrierOf(value));
  const int64_t count = source_.Count(input.value);
  if (input.kind == InputKind::kStep) {
    return {PlaceKind::kOne, Cat("static_cast<", type, ">(", mode_.time, ")"), count};
  }
  if (input.kind != InputKind::kConfig) return InstanceInput(input);
  const std::string name = source_.Name(input.value);
  const double number = input.default_value.value_or(0.0);
  if (value.type.element == ElementType::kReal) {
    kernel_.Line(
        Cat("const ", type, " ", name, " = args.number[", source_.Number(&input, {number}), "];"));
  } else {
    kernel_.Line(Cat("const ", type, " ", name, " = WrapTo<", type, ">(args.integer[",
                     source_.Integer(&input, {static_cast<int64_t>(number)}), "]);"));
  }
  return {PlaceKind::kOne, name, count};
}

// Params, controls and data: what does not change by step and is small is read once.
Place RegionWriter::InstanceInput(const Input& input) {
  const Value& value = source_.At(input.value);
  const std::string type = CTypeOf(CarrierOf(value));
  const int64_t count = source_.Count(input.value);
  const size_t index = source_.IndexOf(input);
  const bool by_step = source_.per_step(index);
  const auto read = [&](const std::string& element) {
    const std::string view =
        Cat("args.input[", index, "], instance, ", by_step ? mode_.read_time : "0", ", ", element);
    return value.type.element == ElementType::kReal ? Cat("ReadReal(", view, ")")
                                                    : Cat("ReadInteger<", type, ">(", view, ")");
  };
  const bool keeps =
      !by_step && count >= 1 && (count == 1 || (!source_.block() && count <= kLargestPrivateInput));
  if (!keeps) return {PlaceKind::kFormula, read("#"), count};
  const std::string name = source_.Name(input.value);
  if (count == 1) {
    const bool kept = groups_ && !only_cast_.contains(input.value);
    const std::string opening = kept ? Opening(type, name) : Cat("const ", type, " ", name);
    instance_.Line(Cat(opening, " = ", read("0"), ";"));
    return {PlaceKind::kOne, name, 1};
  }
  KeepArray(instance_, type, name, count);
  instance_.Line(Cat("for (int e = 0; e < ", count, "; ++e) ", name, "[e] = ", read("e"), ";"));
  return {PlaceKind::kPrivate, name, count};
}

void RegionWriter::Define(ValueId id, const std::string& comment, const Indexed& value) {
  const std::string name = source_.Name(id);
  const int64_t count = source_.Count(id);
  if (count == 1) {
    Line(Cat("const ", source_.CType(id), " ", name, " = ", value("0"), ";", comment));
    SetPlace(id, {PlaceKind::kOne, name, 1});
  } else {
    if (!comment.empty()) Line(comment.substr(2));
    const Place place = NewVariable(name, CarrierOf(source_.At(id)), count);
    EachElement(place, [&](const std::string& i) { return Cat(place[i], " = ", value(i), ";"); });
    SetPlace(id, place);
  }
  StoreTaped(id);
}

std::string RegionWriter::Executed(ValueId where, int64_t count, const std::string& index) {
  const Place mask = PlaceOf(where);
  const int64_t size = source_.Count(where);
  if (size == count || size == 1) return mask[size == 1 ? "0" : index];
  CrossRead({mask});
  return Cat("Any<", size, ">([&](int i) { return ", mask["i"], "; })");
}

void RegionWriter::Look(ValueId id, ValueId where) {
  if (!mode_.looks || !source_.IsReal(id) || !source_.look(id)) return;
  LookAt(PlaceOf(id), where);
}

void RegionWriter::LookAt(const Place& place, ValueId where) {
  if (!mode_.looks) return;
  const std::string always = where == ValueId::kNone ? "" : Executed(where, place.count, "e");
  EachElement(place, [&](const std::string& i) {
    const std::string mask =
        where == ValueId::kNone || place.count != 1 ? always : Executed(where, 1, "0");
    return Cat("bad |= ", mask.empty() ? "" : Cat(mask, " && "), "!IsFinite(", place[i], ");");
  });
}

std::string RegionWriter::CommentOf(const Op& op) const {
  if (op.label.empty()) return "";
  std::string label = op.label;
  for (char& c : label) {
    if (static_cast<unsigned char>(c) < 32 || c == '\\') c = ' ';
  }
  return Cat("  // ", label);
}

void RegionWriter::Literal(const Op& op) {
  const ValueId id = op.results[0];
  const Value& value = source_.At(id);
  const std::string type = CTypeOf(CarrierOf(value));
  const bool real = value.type.element == ElementType::kReal;
  const std::vector<double>& literal = op.attributes.literal;
  size_t at = 0;
  if (real) {
    std::vector<double> rounded = literal;
    for (double& x : rounded) x = precision::RoundTo(source_.FormatOf(id), x);
    at = source_.Number(&op, rounded);
  } else {
    std::vector<int64_t> integers;
    for (double x : literal) integers.push_back(static_cast<int64_t>(x));
    at = source_.Integer(&op, integers);
  }
  const auto read = [&](const std::string& index) {
    return real ? Cat("static_cast<", type, ">(args.number[", index, "])")
                : Cat("WrapTo<", type, ">(args.integer[", index, "])");
  };
  if (IsSplat(literal)) {
    const std::string name = source_.Name(id);
    kernel_.Line(Cat("const ", type, " ", name, " = ", read(Cat(at)), ";", CommentOf(op)));
    SetPlace(id, {PlaceKind::kOne, name, source_.Count(id)});
  } else {
    SetPlace(id, {PlaceKind::kFormula, read(Cat(at, " + #")), source_.Count(id)});
  }
}

}  // namespace simgrad::sim::cuda
