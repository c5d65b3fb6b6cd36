#include "sim/program/paths.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/op/op_info.h"
#include "sim/op/types.h"
#include "sim/program/loop.h"
#include "sim/program/path_decisions.h"
#include "sim/program/print.h"

namespace simgrad::sim {
namespace {

// The attributes that say which elements an operation picks and in which order it takes them. Numbers
// (literals, tables of indices) may differ.
constexpr std::array<Attribute, 11> kPicks = {
    Attribute::kAxes,   Attribute::kStart,      Attribute::kDims,   Attribute::kReverse,
    Attribute::kStride, Attribute::kInterior,   Attribute::kBounds, Attribute::kCombine,
    Attribute::kUpper,  Attribute::kTransposed, Attribute::kUnit};

// Values are numbered as they are defined, so that a constant more or less changes nothing.
class StructureText {
 public:
  StructureText(const Program& program, PassBudget& budget) : program_(program), budget_(budget) {}

  std::string Run() {
    for (const Input& input : program_.inputs) {
      // Data decide as controls do, which they are where a gradient by them is asked for.
      const InputKind kind = input.kind == InputKind::kData ? InputKind::kControl : input.kind;
      text_ += absl::StrCat(std::string(InputKindName(kind)), " ", input.name);
      Define(input.value);
    }
    Add(program_.step);
    const Region& initial = program_.initial;
    if (Decides(initial, DecidingConversions(program_, initial, budget_))) Add(initial);
    return std::move(text_);
  }

 private:
  bool Decides(const Region& region, const std::vector<bool>& converts) const {
    return std::any_of(region.ops.begin(), region.ops.end(), [&](const Op& op) {
      budget_.Visit();
      if (op.code == OpCode::kOwnVjp) return false;
      return DecidesByReals(program_, op, converts) ||
             std::any_of(op.regions.begin(), op.regions.end(),
                         [&](const Region& nested) { return Decides(nested, converts); });
    });
  }
  void Define(ValueId id) {
    if (id == ValueId::kNone) return;
    numbers_.try_emplace(Index(id), numbers_.size());
    text_ += absl::StrCat(" ", TypeText(program_[id].type));
  }
  void Use(ValueId id) {
    const auto known = numbers_.find(Index(id));
    text_ += known == numbers_.end() ? std::string(" #") : absl::StrCat(" ", known->second);
  }

  void Add(const Region& region) {
    text_ += "{";
    for (ValueId id : region.args) Define(id);
    for (const Op& op : region.ops) {
      budget_.Visit(1 + static_cast<int64_t>(op.operands.size()));
      if (op.code == OpCode::kLiteral) continue;
      text_ += absl::StrCat("\n", std::string(InfoOf(op.code).name), " ", op.attributes.site);
      const Attributes& a = op.attributes;
      for (int64_t number : {a.max_iter, int64_t{static_cast<int>(a.comparison)},
                             int64_t{static_cast<int>(a.cap_order)}, a.elements,
                             int64_t{a.predicate}, int64_t{a.has_entry}, int64_t{a.carried}}) {
        text_ += absl::StrCat(",", number);
      }
      for (const Attribute attribute : kPicks) {
        if (!InfoOf(op.code).attributes.Has(attribute)) continue;
        text_ += InfoOf(attribute).text(program_, op, [](ValueId) { return std::string(); });
      }
      for (ValueId id : op.operands) Use(id);
      text_ += " ->";
      for (ValueId id : op.results) Define(id);
      for (const Region& nested : op.regions) Add(nested);
    }
    for (ValueId id : region.yields) Use(id);
    text_ += "}";
    budget_.WroteText(static_cast<int64_t>(text_.size()));
  }

  const Program& program_;
  PassBudget& budget_;
  std::unordered_map<size_t, size_t> numbers_;
  std::string text_;
};

}  // namespace

std::string_view WorldSite(std::string_view name) {
  const size_t space = name.rfind(' ');
  return space == std::string_view::npos ? name : name.substr(space + 1);
}

std::string StructureOf(const Program& program, PassBudget& budget) {
  return Fingerprint(StructureText(program, budget).Run(), &budget);
}

std::string DigestOf(const std::string& structure, const PathLayout& layout, PassBudget& budget) {
  std::string text = structure;
  for (const PathColumn& column : layout.columns) {
    absl::StrAppend(&text, "\n", column.site, " ", column.first, " ", column.width, " [",
                    absl::StrJoin(column.shape, ","), "]");
  }
  return Fingerprint(text, &budget);
}

}  // namespace simgrad::sim
