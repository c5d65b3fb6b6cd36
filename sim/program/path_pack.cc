#include "sim/program/path_pack.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/op/op_info.h"
#include "sim/program/choices.h"
#include "sim/program/decision_margin.h"
#include "sim/program/field_error.h"
#include "sim/program/path_decisions.h"
#include "sim/program/paths.h"

namespace simgrad::sim {
namespace {

int64_t CountOf(const PathColumn& column) { return ElementCount(column.shape); }

int64_t BitsOf(const PathLayout& layout) {
  int64_t bits = 0;
  for (const PathColumn& column : layout.columns) bits += column.width == 0 ? CountOf(column) : 0;
  return bits;
}

// Refuses what decides by reals in a region that no path records. A cost may weigh by what it
// compares, and a guard may keep it from a division by 0: what hangs on the path is named.
class Refusal {
 public:
  Refusal(const Program& program, std::string where, PassBudget& budget)
      : program_(program), where_(std::move(where)), budget_(budget) {}

  void OfRegion(const Region& region) {
    if (Converts(region)) FindConversions(region);
    Refuse(region);
  }

 private:
  bool Converts(const Region& region) {
    for (const Op& op : region.ops) {
      budget_.Visit();
      if (op.code == OpCode::kConvert) return true;
      for (const Region& nested : op.regions) {
        if (Converts(nested)) return true;
      }
    }
    return false;
  }

  // As in `step`, a conversion decides where it reaches a predicate, a choice or a place.
  void FindConversions(const Region& region) {
    Program alone = program_;
    alone.step = region;
    std::vector<bool> predicates = BehindPredicates(alone, &budget_);
    predicates.resize(alone.values.size());
    const std::vector<bool> choices = BehindChoices(alone, &budget_);
    const std::vector<bool> places = BehindPlaces(alone, &budget_);
    converts_.resize(alone.values.size());
    for (size_t i = 0; i < converts_.size(); ++i) {
      converts_[i] = predicates[i] || choices[i] || places[i];
    }
  }

  bool Decides(const Op& op) const {
    if (op.code == OpCode::kIsFinite) return true;
    if (ComparesTwo(op)) return program_.IsReal(op.operands[0]);
    if (HasPivots(op)) return program_[op.operands[0]].type.shape[0] > 1;
    if (op.code == OpCode::kCholesky || !ChoosesByReals(program_, op)) return false;
    return op.code != OpCode::kConvert || converts_[Index(op.results[0])];
  }

  void Refuse(const Region& region) {
    for (const Op& op : region.ops) {
      budget_.Visit();
      if (op.code == OpCode::kOwnVjp) continue;
      if (Decides(op)) {
        throw PassBudget::Ended{FieldError(
            "path",
            absl::StrCat("'", std::string(InfoOf(op.code).name), op.label.empty() ? "" : " of ",
                         op.label, "' decides by reals in ", where_,
                         "; a path holds what `step` and a stage cost decide, so write it there"))};
      }
      for (const Region& nested : op.regions) Refuse(nested);
    }
  }

  const Program& program_;
  const std::string where_;
  PassBudget& budget_;
  std::vector<bool> converts_;  // by value: a conversion that decides gives it
};

}  // namespace

void PlaceColumns(PathLayout& layout) {
  int64_t bit = 0;
  int64_t byte = (BitsOf(layout) + 7) / 8;
  for (PathColumn& column : layout.columns) {
    column.first = column.width == 0 ? bit : byte;
    (column.width == 0 ? bit : byte) += CountOf(column) * (column.width == 0 ? 1 : column.width);
  }
  layout.bytes = byte;
}

ValueId PackPath(PathLines& lines, const PathLayout& layout, const std::vector<ValueId>& columns) {
  std::vector<ValueId> bits, rows;
  for (size_t k = 0; k < columns.size(); ++k) {
    const PathColumn& column = layout.columns[k];
    if (CountOf(column) == 0) continue;
    if (column.width == 0) {
      bits.push_back(lines.Reshaped(columns[k], {CountOf(column)}));
    } else {
      rows.push_back(lines.Bytes(columns[k], column.width));
    }
  }
  if (!bits.empty()) rows.insert(rows.begin(), lines.Bits(lines.Joined(bits)));
  return lines.Joined(rows);
}

std::vector<ValueId> UnpackPath(PathLines& lines, const PathLayout& layout, ValueId row) {
  const int64_t bits = BitsOf(layout);
  const ValueId bools =
      bits == 0 ? ValueId::kNone : lines.Bools(lines.Part(row, 0, (bits + 7) / 8), bits);
  std::vector<ValueId> columns;
  for (const PathColumn& column : layout.columns) {
    const Type type{column.element, column.shape};
    const int64_t count = CountOf(column);
    if (count == 0) {
      columns.push_back(lines.Number(0, type));
    } else if (column.width == 0) {
      columns.push_back(lines.Reshaped(lines.Part(bools, column.first, count), column.shape));
    } else {
      const ValueId bytes = lines.Part(row, column.first, count * column.width);
      columns.push_back(lines.Numbers(bytes, type, column.width));
    }
  }
  return columns;
}

void AddExport(Program& program, const std::string& name, ValueId value, PassBudget& budget) {
  program[value].name = name;
  program.exports.push_back({.name = name, .value = value, .of_every_step = true});
  for (Objective& objective : program.objectives) {
    if (!objective.HasTerminal()) continue;
    const ValueId arg = program.AddValue(program[value].type, name);
    program[arg].format = program[value].format;
    program[arg].watched = program[value].watched;
    objective.terminal.args.push_back(arg);
    budget.WroteValue(program[value]);
  }
}

void RefuseDecisionsOutside(const Program& program, PassBudget& budget) {
  Refusal(program, "`initial`", budget).OfRegion(program.initial);
  for (const Objective& objective : program.objectives) {
    Refusal(program, "the terminal cost", budget).OfRegion(objective.terminal);
  }
}

}  // namespace simgrad::sim
