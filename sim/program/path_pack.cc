#include "sim/program/path_pack.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/op/op_info.h"
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

// A cost may weigh by what it compares, and a guard may keep it from a division by 0: what hangs on the
// path is named.
void Refuse(const Program& program, const Region& region, const std::vector<bool>& converts,
            PassBudget& budget) {
  for (const Op& op : region.ops) {
    budget.Visit();
    if (op.code == OpCode::kOwnVjp) continue;
    if (DecidesByReals(program, op, converts)) {
      throw PassBudget::Ended{FieldError(
          "path", absl::StrCat("'", std::string(InfoOf(op.code).name),
                               op.label.empty() ? "" : " of ", op.label,
                               "' decides by reals in the terminal cost; a path holds what "
                               "`initial`, `step` and a stage cost decide, so write it there"))};
    }
    for (const Region& nested : op.regions) Refuse(program, nested, converts, budget);
  }
}

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

void RefuseTerminalDecisions(const Program& program, PassBudget& budget) {
  for (const Objective& objective : program.objectives) {
    const std::vector<bool> converts = DecidingConversions(program, objective.terminal, budget);
    Refuse(program, objective.terminal, converts, budget);
  }
}

}  // namespace simgrad::sim
