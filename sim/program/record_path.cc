// Recording: what decisions gave leaves the loops around them, and the step.
#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "sim/program/path_decisions.h"
#include "sim/program/path_pack.h"
#include "sim/program/path_start.h"
#include "sim/program/paths.h"
#include "sim/program/step_recorder.h"

namespace simgrad::sim {
namespace {

class PathRecorder : public StepRecorder {
 public:
  // `forced`: results of the operations that decide, in a region that follows a path; null: of all that do.
  PathRecorder(Program& program, PassBudget& budget,
               const std::unordered_set<size_t>* forced = nullptr)
      : StepRecorder(program, budget, "path"), decisions_(program, budget), forced_(forced) {}

  // Records `initial`; columns of the step come behind.
  std::vector<ValueId> RunStart() {
    where_ = "initial.";
    std::vector<ValueId> values = Run(program_.initial);
    where_ = "";
    return values;
  }

 private:
  void OfOperation(const Op& op, PathLines&, std::vector<Kept>& kept) override {
    const bool decides = forced_ == nullptr
                             ? decisions_.Decides(op)
                             : !op.results.empty() && forced_->count(Index(op.results[0])) != 0;
    if (decides) Keep(decisions_.ColumnOf(op, where_), op.results[0], kept);
  }
  void OfLoop(const Op& op, std::vector<Kept>& kept) override {
    Keep(decisions_.ColumnOf(op, where_), op.results.back(), kept);
  }
  // The count of a loop says what only stops it.
  Wanted WantedOf(const Op& op) const override { return PathDecisions::BehindExports(op); }
  ValueId Blank(PathLines& lines, Type type) override { return lines.Number(0, type); }

  PathDecisions decisions_;
  const std::unordered_set<size_t>* const forced_;
  std::string_view where_;
};

}  // namespace

std::vector<ValueId> RecordForcedStart(Program& program, const std::unordered_set<size_t>& decided,
                                       PassBudget& budget) {
  PathRecorder recorder(program, budget, &decided);
  const std::vector<ValueId> values = recorder.RunStart();
  if (values.empty()) return {};
  return CarryPathStart(program, recorder.columns(), values, budget);
}

NumericalProgram RecordPath(NumericalProgram numerical, PassBudget& budget) {
  Program& program = numerical.program;
  RefuseTerminalDecisions(program, budget);
  NamePivots(program, budget);
  PathRecorder recorder(program, budget);
  const std::vector<ValueId> first = recorder.RunStart();
  const std::vector<PathColumn> of_start = recorder.columns();
  std::vector<ValueId> values = recorder.Run(program.step);
  if (!first.empty()) {
    const std::vector<ValueId> carried = CarryPathStart(program, of_start, first, budget);
    std::copy(carried.begin(), carried.end(), values.begin());
  }
  PathLayout& layout = numerical.path.emplace();
  layout.use = PathUse::kRecorded;
  layout.columns = std::move(recorder.columns());
  PlaceColumns(layout);
  PathLines lines(program, budget, program.step.ops);
  if (layout.bytes > 0) AddExport(program, kPathTaken, PackPath(lines, layout, values), budget);
  return numerical;
}

}  // namespace simgrad::sim
