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

  void OfTest(const Op& op, PathLines& lines, std::vector<Kept>& kept) override {
    if (!IsAsked(op)) return;
    if (op.attributes.predicate) {
      throw PassBudget::Ended{FieldError(
          absl::StrCat("diagnostics.margins[", asked_.at(op.attributes.site), "]"),
          absl::StrCat("'", op.attributes.site,
                       "' is a loop that a boolean stops; ask for the tests that it is made of"))};
    }
    const std::vector<ValueId>& tested = op.regions[0].yields;
    const ValueId margin = lines.Difference(tested[0], tested[1]);
    Keep(ColumnOf(op, margin), margin, kept);
  }

  ValueId Blank(PathLines& lines, const Type& type) override { return lines.Real(kBlank, type); }

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
  for (const Site& site : numerical.sites) known.push_back(site.name);
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

}  // namespace

std::string MarginExport(const std::string& site) { return absl::StrCat(kMarginSite, site); }

NumericalProgram RecordMargins(NumericalProgram numerical, const std::vector<std::string>& sites,
                               PassBudget& budget) {
  CheckSites(numerical, sites);
  Program& program = numerical.program;
  MarginRecorder recorder(program, sites, budget);
  const std::vector<ValueId> margins = recorder.Run();
  for (size_t k = 0; k < margins.size(); ++k) {
    AddExport(program, MarginExport(recorder.columns()[k].site), margins[k], budget);
  }
  if (!numerical.infinite.empty()) numerical.infinite.resize(program.values.size());
  return numerical;
}

}  // namespace simgrad::sim
