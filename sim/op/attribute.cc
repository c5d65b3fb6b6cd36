#include "sim/op/attribute.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using Names = AttributeInfo::ValueNames;

std::string List(const char* name, const std::vector<int64_t>& numbers) {
  std::string text = std::string(" ") + name + "=[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? "," : "") + std::to_string(numbers[i]);
  return text + "]";
}

std::string Unsaid(const Program&, const Op&, const Names&) { return ""; }

// " 0x1.8p+1", as printf's %a has it, in a tenth of its time: a table may hold a million numbers.
void AppendHexadecimal(double x, std::string& text) {
  char buffer[64];
  if (!std::isnormal(x)) {
    std::snprintf(buffer, sizeof buffer, " %a", x);
    text += buffer;
    return;
  }
  text += std::signbit(x) ? " -0x" : " 0x";
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, std::abs(x), std::chars_format::hex).ptr;
  text.append(buffer, end);
}

// Hexadecimal: exact.
std::string Numbers(const Program&, const Op& op, const Names&) {
  std::string text;
  for (const double x : op.attributes.literal) AppendHexadecimal(x, text);
  return text;
}

std::string ComparisonText(const Program&, const Op& op, const Names&) {
  if (op.attributes.predicate) return "";
  constexpr std::array<std::string_view, 6> kTexts = {"<", "<=", ">", ">=", "==", "!="};
  return " " + std::string(kTexts[static_cast<size_t>(op.attributes.comparison)]);
}

// Known once a format is assigned.
bool HasFormat(const Program& program, const Op& op) {
  return program[op.results[0]].format.has_value();
}

std::string DrawText(const Program&, const Op& op, const Names&) {
  if (op.code == OpCode::kCast && !IsStochastic(op)) return "";
  return " draw=" + std::to_string(op.attributes.draw);
}

std::string OrderText(const Program& program, const Op& op, const Names&) {
  return HasFormat(program, op) ? " order=" + precision::TextOf(op.attributes.order) : "";
}

std::string InputsText(const Program&, const Op& op, const Names&) {
  if (!op.attributes.rounding) return "";
  return " inputs=tf32 " + std::string(precision::CastRoundingName(*op.attributes.rounding));
}

std::string ProductsText(const Program&, const Op& op, const Names&) {
  return op.attributes.ordered ? " products=" + precision::TextOf(op.attributes.order) : "";
}

std::string AccumulatorText(const Program& program, const Op& op, const Names&) {
  if (!HasFormat(program, op)) return "";
  return " accumulator=" + std::string(precision::Traits(op.attributes.accumulator).name);
}

std::string TapedText(const Program&, const Op& op, const Names& used) {
  return " " + used(op.attributes.primal);
}

std::string ReversedText(const Program&, const Op& op, const Names& used) {
  return " of " + used(op.attributes.primal);
}

std::string LastText(const Program&, const Op& op, const Names&) {
  return op.attributes.last > 0 ? " last=" + std::to_string(op.attributes.last) : "";
}

std::string IntoInput(const Program& program, const Op& op, const Names&) {
  const Input& input = program.inputs[static_cast<size_t>(op.attributes.input)];
  const std::string into = " into " + std::string(InputKindName(input.kind)) + "." + input.name;
  return op.attributes.combine == Combine::kMax ? into + " max" : into;
}

// " name", where it holds.
template <bool Attributes::*kFlag>
std::string Flag(const char* name, const Op& op) {
  return op.attributes.*kFlag ? std::string(" ") + name : "";
}

std::string ListIfAny(const char* name, const std::vector<int64_t>& numbers) {
  return numbers.empty() ? "" : List(name, numbers);
}

std::string FillText(const Program& program, const Op& op, const Names& used) {
  return op.attributes.literal.empty() ? "" : " fill=" + Numbers(program, op, used).substr(1);
}

constexpr std::array<std::string_view, 4> kBounds = {"", "clip", "fill", "drop"};
constexpr std::array<std::string_view, 6> kCombines = {"", "set", "add", "mul", "min", "max"};

template <class T, size_t kCount>
std::optional<T> FromName(const std::array<std::string_view, kCount>& names,
                          std::string_view name) {
  for (size_t i = 1; i < kCount; ++i) {
    if (names[i] == name) return static_cast<T>(i);
  }
  return std::nullopt;
}

const std::array<AttributeInfo, kAttributeCount> kTable = {{
    {"literal", &Attributes::literal, Numbers},
    {"axes", &Attributes::axes,
     [](const Program&, const Op& op, const Names&) { return List("axes", op.attributes.axes); }},
    {"start", &Attributes::start,
     [](const Program&, const Op& op, const Names&) { return List("start", op.attributes.start); }},
    {"shape", &Attributes::shape, Unsaid},  // the type of the result says it
    {"dims", &Attributes::dims,
     [](const Program&, const Op& op, const Names&) { return List("dims", op.attributes.dims); }},
    {"decision_site", &Attributes::site,
     [](const Program&, const Op& op, const Names&) -> std::string {
       if (op.attributes.site.empty()) return IsBranch(op) ? " branch" : "";
       return " site=" + op.attributes.site;
     }},
    {"comparison", &Attributes::comparison, ComparisonText},
    {"max_iter", &Attributes::max_iter,
     [](const Program&, const Op& op, const Names&) {
       return " max_iter=" + std::to_string(op.attributes.max_iter);
     }},
    {"max_iter", &Attributes::max_iter,
     [](const Program&, const Op& op, const Names&) {
       return " count=" + std::to_string(op.attributes.max_iter);
     }},
    {"cap_first", &Attributes::cap_order,
     [](const Program&, const Op& op, const Names&) -> std::string {
       return op.attributes.cap_order == CapOrder::kCapFirst ? " cap_first" : "";
     }},
    {"has_entry", &Attributes::has_entry,
     [](const Program&, const Op& op, const Names&) -> std::string {
       return op.attributes.has_entry ? " entry" : "";
     }},
    {"predicate", &Attributes::predicate,
     [](const Program&, const Op& op, const Names&) -> std::string {
       return op.attributes.predicate && !IsBranch(op) ? " predicate" : "";
     }},
    {"elements", &Attributes::elements,
     [](const Program&, const Op& op, const Names&) -> std::string {
       const int64_t elements = op.attributes.elements;
       return elements > 0 ? " elements=" + std::to_string(elements) : "";
     }},
    {"carried", &Attributes::carried,
     [](const Program&, const Op& op, const Names&) {
       return " carried=" + std::to_string(op.attributes.carried);
     }},
    {"scanned", &Attributes::scanned,
     [](const Program&, const Op& op, const Names&) -> std::string {
       const int32_t scanned = op.attributes.scanned;
       return scanned > 0 ? " scanned=" + std::to_string(scanned) : "";
     }},
    {"test_kind", &Attributes::kind,
     [](const Program&, const Op& op, const Names&) -> std::string {
       const std::string_view kind = TestKindName(op.attributes.kind);
       return kind.empty() ? "" : " kind=" + std::string(kind);
     }},
    {"carried", &Attributes::carried, Unsaid},
    {"format", &Attributes::format, Unsaid},  // the type of the result says it
    {"reverse", &Attributes::reverse,
     [](const Program&, const Op& op, const Names&) -> std::string {
       return op.attributes.reverse ? " reverse" : "";
     }},
    {"stride", &Attributes::dims,
     [](const Program&, const Op& op, const Names&) {
       return ListIfAny("stride", op.attributes.dims);
     }},
    {"interior", &Attributes::dims,
     [](const Program&, const Op& op, const Names&) {
       return ListIfAny("interior", op.attributes.dims);
     }},
    {"indices", &Attributes::start,
     [](const Program&, const Op& op, const Names&) {
       return List("indices", op.attributes.start);
     }},
    {"fill", &Attributes::literal, FillText},
    {"bounds", &Attributes::bounds,
     [](const Program&, const Op& op, const Names&) {
       return " bounds=" + std::string(BoundsName(op.attributes.bounds));
     }},
    {"combine", &Attributes::combine,
     [](const Program&, const Op& op, const Names&) {
       return " " + std::string(CombineName(op.attributes.combine));
     }},
    {"upper", &Attributes::upper,
     [](const Program&, const Op& op, const Names&) {
       return Flag<&Attributes::upper>("upper", op);
     }},
    {"transposed", &Attributes::transposed,
     [](const Program&, const Op& op, const Names&) {
       return Flag<&Attributes::transposed>("transposed", op);
     }},
    {"unit", &Attributes::unit,
     [](const Program&, const Op& op,
        const Names&) { return Flag<&Attributes::unit>("unit", op); }},
    {"error", &Attributes::error,
     [](const Program&, const Op& op,
        const Names&) { return Flag<&Attributes::error>("error", op); }},
    {"format", &Attributes::format,
     [](const Program&, const Op& op, const Names&) {
       return " format=" + std::string(precision::FormatName(*op.attributes.format));
     }},
    {"", {}, DrawText},
    {"", {}, InputsText},
    {"", {}, ProductsText},
    {"", {}, OrderText},
    {"", {}, AccumulatorText},
    {"", {}, TapedText},
    {"", {}, ReversedText},
    {"", {}, LastText},
    {"overflow", &Attributes::overflow,
     [](const Program&, const Op& op, const Names&) -> std::string {
       return op.attributes.overflow == Overflow::kSaturate ? " saturate" : "";
     }},
    {"rounding", &Attributes::rounding,
     [](const Program&, const Op& op, const Names&) -> std::string {
       const CastRounding rounding = op.attributes.rounding.value_or(CastRounding::kNearestEven);
       if (rounding == CastRounding::kNearestEven) return "";
       return " " + std::string(precision::CastRoundingName(rounding));
     }},
    {"", {}, IntoInput},
}};

}  // namespace

std::string_view BoundsName(Bounds bounds) { return kBounds[static_cast<size_t>(bounds)]; }
std::string_view CombineName(Combine combine) { return kCombines[static_cast<size_t>(combine)]; }
std::optional<Bounds> BoundsFromName(std::string_view name) {
  return FromName<Bounds>(kBounds, name);
}
std::optional<Combine> CombineFromName(std::string_view name) {
  return FromName<Combine>(kCombines, name);
}

const AttributeInfo& InfoOf(Attribute attribute) { return kTable[static_cast<size_t>(attribute)]; }

}  // namespace simgrad::sim
