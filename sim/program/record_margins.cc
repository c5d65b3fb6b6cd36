#include "sim/program/record_margins.h"

#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/path_pack.h"
#include "sim/program/paths.h"
#include "sim/program/step_recorder.h"

namespace simgrad::sim {
namespace {

class MarginRecorder : public StepRecorder {
 public:
  MarginRecorder(Program& program, const std::vector<std::string>& sites, PassBudget& budget)
      : StepRecorder(program, budget, "diagnostics.margins") {
    for (size_t i = 0; i < sites.size(); ++i) asked_.emplace(sites[i], i);
  }

 private:
  void OfOperation(const Op& op, PathLines& lines, std::vector<Kept>& kept) override {
    if (!IsTest(op) || !IsAsked(op)) return;
    const size_t first = op.code == OpCode::kChoice ? 1 : 0;
    ValueId margin = lines.Difference(op.operands[first], op.operands[first + 1]);
    if (op.code == OpCode::kEvent && op.operands.size() > 2) {
      const Type type = lines.TypeOf(margin);
      margin = lines.Do(OpCode::kSelect, {op.operands[2], margin, lines.Real(kBlank, type)}, type);
    }
    Keep(ColumnOf(op, margin), margin, kept);
  }

  bool KeepsTest(const Op& op) const override { return IsAsked(op); }
  void OfTest(const Op& op, ValueId turn, PathLines& lines, std::vector<Kept>& kept) override {
    if (op.attributes.predicate) {
      std::string tests;
      for (const Op& inner : op.regions[0].ops) {
        // A name with a space is that of a test that follows a path.
        if (IsTest(inner) && inner.attributes.site.find(' ') == std::string::npos)
          absl::StrAppend(&tests, tests.empty() ? "" : ", ", inner.attributes.site);
      }
      throw PassBudget::Ended{FieldError(
          absl::StrCat("diagnostics.margins[", asked_.at(op.attributes.site), "]"),
          absl::StrCat("'", op.attributes.site, "' is a loop that a boolean stops",
                       tests.empty() ? ", as all are in a run that follows a path; ask for tests"
                                     : "; ask for the tests behind that: " + tests))};
    }
    const std::vector<ValueId>& tested = op.regions[0].yields;
    ValueId margin = lines.Difference(tested[0], tested[1]);
    if (op.attributes.has_entry) margin = WhereEntered(tested[0], tested[2], turn, margin, lines);
    Keep(ColumnOf(op, margin), margin, kept);
  }

  ValueId Blank(PathLines& lines, Type type) override { return lines.Real(kBlank, type); }

  // A loop that is not entered makes no test of its end.
  static ValueId WhereEntered(ValueId lhs, ValueId entry, ValueId turn, ValueId margin,
                              PathLines& lines) {
    const Type truth{ElementType::kBool, {}};
    const ValueId enters = lines.Do(OpCode::kGe, {lhs, entry}, truth);
    const ValueId none = lines.Number(0, lines.TypeOf(turn));
    const ValueId is_later = lines.Do(OpCode::kGt, {turn, none}, truth);
    const ValueId tests = lines.Do(OpCode::kOr, {enters, is_later}, truth);
    const Type type = lines.TypeOf(margin);
    return lines.Do(OpCode::kSelect, {tests, margin, lines.Real(kBlank, type)}, type);
  }

  bool IsAsked(const Op& op) const { return asked_.count(op.attributes.site) != 0; }

  PathColumn ColumnOf(const Op& op, ValueId margin) const {
    PathColumn column;
    column.site = op.attributes.site;
    column.element = ElementType::kReal;
    column.shape = program_[margin].type.shape;
    column.loops.assign(column.shape.size(), -1);
    column.width = sizeof(double);
    return column;
  }

  static constexpr double kBlank = std::numeric_limits<double>::quiet_NaN();

  std::map<std::string, size_t> asked_;
};

void CheckSites(const NumericalProgram& numerical, const std::vector<std::string>& sites) {
  std::vector<std::string> known;
  for (const Site& site : numerical.sites) {
    const bool is_own = WorldSite(site.name) == site.name;  // not of a run that follows a path
    if (is_own) known.push_back(site.name);
  }
  const std::unordered_set<std::string> names(known.begin(), known.end());
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < sites.size(); ++i) {
    const std::string field = absl::StrCat("diagnostics.margins[", i, "]");
    if (names.count(sites[i]) == 0) {
      throw PassBudget::Ended{FieldError(field, absl::StrCat("the program has no site '", sites[i],
                                                             "'; its sites: ", NameList(known)))};
    }
    if (!seen.insert(sites[i]).second) {
      throw PassBudget::Ended{FieldError(field, absl::StrCat("'", sites[i], "' stands twice"))};
    }
  }
}

// A site in a loop of 0 turns has no column.
void CheckEvaluated(const std::vector<PathColumn>& columns, const std::vector<std::string>& sites) {
  std::unordered_set<std::string> evaluated;
  for (const PathColumn& column : columns) evaluated.insert(column.site);
  for (size_t i = 0; i < sites.size(); ++i) {
    if (evaluated.count(sites[i]) != 0) continue;
    throw PassBudget::Ended{
        FieldError(absl::StrCat("diagnostics.margins[", i, "]"),
                   absl::StrCat("'", sites[i], "' is never evaluated: its loop has 0 turns"))};
  }
}

}  // namespace

std::string MarginExport(const std::string& site) { return absl::StrCat(kMarginSite, site); }

NumericalProgram RecordMargins(NumericalProgram numerical, const std::vector<std::string>& sites,
                               PassBudget& budget) {
  CheckSites(numerical, sites);
  Program& program = numerical.program;
  MarginRecorder recorder(program, sites, budget);
  const std::vector<ValueId> margins = recorder.Run(numerical.program.step);
  CheckEvaluated(recorder.columns(), sites);
  for (size_t k = 0; k < margins.size(); ++k) {
    AddExport(program, MarginExport(recorder.columns()[k].site), margins[k], budget);
  }
  if (!numerical.infinite.empty()) numerical.infinite.resize(program.values.size());
  return numerical;
}

}  // namespace simgrad::sim
