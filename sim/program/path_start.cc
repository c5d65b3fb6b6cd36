#include "sim/program/path_start.h"

#include <utility>

#include "sim/program/halts.h"
#include "sim/program/path_lines.h"
#include "sim/program/path_pack.h"
#include "sim/program/paths.h"

namespace simgrad::sim {
namespace {

// The state of halts stays the last one.
size_t PlaceOfStart(const Program& program) {
  const std::vector<int32_t> states = program.InputsOf(InputKind::kState);
  const bool halts =
      !states.empty() && program.inputs[static_cast<size_t>(states.back())].name == kHaltedState;
  return states.size() - (halts ? 1 : 0);
}

void InsertAt(std::vector<ValueId>& ids, size_t place, ValueId id) {
  ids.insert(ids.begin() + static_cast<int64_t>(place), id);
}

}  // namespace

std::vector<ValueId> CarryPathStart(Program& program, const std::vector<PathColumn>& columns,
                                    const std::vector<ValueId>& values, PassBudget& budget) {
  PathLayout start{.columns = columns};
  PlaceColumns(start);
  std::vector<Op> unpacked;
  PathLines in_step(program, budget, unpacked);
  ValueId state = ValueId::kNone;
  if (start.bytes > 0) {
    PathLines in_initial(program, budget, program.initial.ops);
    const ValueId row = PackPath(in_initial, start, values);
    const Type type = program[row].type;
    const size_t place = PlaceOfStart(program);
    state = in_step.NewValue(type);
    program[state].name = kPathStart;
    program.inputs.insert(
        program.inputs.begin() + static_cast<int64_t>(place),
        {.kind = InputKind::kState, .name = kPathStart, .value = state, .default_value = 0.0});
    InsertAt(program.initial.yields, place, row);
    PathLines at_end(program, budget, program.step.ops);
    InsertAt(program.step.yields, place, at_end.Number(0, type));
    for (Objective& objective : program.objectives) {
      if (!objective.HasTerminal()) continue;
      InsertAt(objective.terminal.args, place, in_step.NewValue(type));
    }
  }
  std::vector<ValueId> carried = UnpackPath(in_step, start, state);
  std::vector<Op>& ops = program.step.ops;
  ops.insert(ops.begin(), std::make_move_iterator(unpacked.begin()),
             std::make_move_iterator(unpacked.end()));
  return carried;
}

std::optional<size_t> StatesBeforePathStart(const Program& program) {
  size_t before = 0;
  for (const Input& input : program.inputs) {
    if (input.kind != InputKind::kState) continue;
    if (input.name == kPathStart) return before;
    ++before;
  }
  return std::nullopt;
}

}  // namespace simgrad::sim
