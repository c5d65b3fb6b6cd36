#include "tests/sim/equality/matmul_coverage.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace simgrad::sim::equality {
namespace {

std::string Way(const std::string& where, const std::string& how) {
  return absl::StrCat(where, ": ", how);
}

void Visit(const Region& region, const std::string& where, std::set<std::string>& ways) {
  for (const Op& op : region.ops) {
    for (const Region& nested : op.regions) Visit(nested, where, ways);
    if (op.code != OpCode::kMatmul) continue;
    const Attributes& a = op.attributes;
    ways.insert(Way(where, a.ordered ? std::string(precision::OrderName(a.order.kind)) : "chain"));
    if (a.rounding) ways.insert(Way(where, std::string(precision::CastRoundingName(*a.rounding))));
  }
}

}  // namespace

void MatmulCoverage::Add(const Case& made) {
  ++cases_;
  const NumericalProgram& numerical = *made.work.batch.program;
  std::set<std::string> ways;
  Visit(numerical.program.step, "step", ways);
  if (numerical.adjoint) Visit(numerical.adjoint->inner, "adjoint", ways);
  for (const std::string& way : ways) ++met_[way];
}

std::string MatmulCoverage::Table() const {
  std::string table = absl::StrCat(cases_, " cases with matmul\n");
  for (const auto& [way, count] : met_) absl::StrAppend(&table, "  ", way, " ", count, "\n");
  return table;
}

std::vector<std::string> MatmulCoverage::Missing(int in_step, int in_adjoint) const {
  std::vector<std::string> missing;
  for (const std::string where : {"step", "adjoint"}) {
    const auto look = [&](const std::string& how) {
      const auto known = met_.find(Way(where, how));
      const int count = known == met_.end() ? 0 : known->second;
      if (count < (where == "step" ? in_step : in_adjoint)) missing.push_back(Way(where, how));
    };
    look("chain");
    for (int i = 0; i < precision::kOrderCount; ++i) {
      look(std::string(precision::OrderName(static_cast<Order>(i))));
    }
    for (const CastRounding rounding :
         {CastRounding::kNearestEven, CastRounding::kNearestAway, CastRounding::kTowardZero}) {
      look(std::string(precision::CastRoundingName(rounding)));
    }
  }
  return missing;
}

}  // namespace simgrad::sim::equality
