// Recording: what decisions gave leaves the loops around them, and the step.
#include <utility>

#include "sim/program/path_decisions.h"
#include "sim/program/path_pack.h"
#include "sim/program/paths.h"
#include "sim/program/step_recorder.h"

namespace simgrad::sim {
namespace {

class PathRecorder : public StepRecorder {
 public:
  PathRecorder(Program& program, PassBudget& budget)
      : StepRecorder(program, budget, "path"), decisions_(program, budget) {}

 private:
  void OfOperation(const Op& op, PathLines&, std::vector<Kept>& kept) override {
    if (decisions_.Decides(op)) Keep(decisions_.ColumnOf(op), op.results[0], kept);
  }
  void OfLoop(const Op& op, std::vector<Kept>& kept) override {
    Keep(decisions_.ColumnOf(op), op.results.back(), kept);
  }
  // The count of a loop says what only stops it.
  Wanted WantedOf(const Op& op) const override { return PathDecisions::BehindExports(op); }
  ValueId Blank(PathLines& lines, Type type) override { return lines.Number(0, type); }

  PathDecisions decisions_;
};

}  // namespace

NumericalProgram RecordPath(NumericalProgram numerical, PassBudget& budget) {
  RefuseDecisionsOutside(numerical.program, budget);
  NamePivots(numerical.program, budget);
  PathRecorder recorder(numerical.program, budget);
  const std::vector<ValueId> values = recorder.Run();
  PathLayout& layout = numerical.path.emplace();
  layout.use = PathUse::kRecorded;
  layout.columns = std::move(recorder.columns());
  PlaceColumns(layout);
  PathLines lines(numerical.program, budget, numerical.program.step.ops);
  if (layout.bytes > 0) {
    AddExport(numerical.program, kPathTaken, PackPath(lines, layout, values), budget);
  }
  return numerical;
}

}  // namespace simgrad::sim
