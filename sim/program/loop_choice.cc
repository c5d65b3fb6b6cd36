#include "sim/program/loop_choice.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/program/field_error.h"
#include "sim/program/loop.h"

namespace simgrad::sim {
namespace {

using How = LoopChoice::How;

// Loops by the base of their names.
void Collect(const Region& region, std::map<std::string, std::vector<const Op*>>& loops) {
  for (const Op& op : region.ops) {
    if (op.code == OpCode::kWhile && !IsBranch(op)) {
      loops[std::string(BaseOfSite(op.attributes.site))].push_back(&op);
    }
    for (const Region& nested : op.regions) {
      Collect(nested, loops);
      if (op.code == OpCode::kCall) break;  // its vjp is not differentiated
    }
  }
}

absl::Status CheckNumbers(const LoopChoice& choice, const std::string& field) {
  if (choice.how == How::kTruncated) {
    if (choice.last >= 1) return absl::OkStatus();
    return FieldError(field + ".truncated", absl::StrCat("must be at least 1, is ", choice.last));
  }
  constexpr int64_t kMostIterations = 100'000;
  constexpr int64_t kMostRestart = 512;
  if (!(choice.tol >= 0) || !std::isfinite(choice.tol)) {
    return FieldError(field + ".implicit.tol",
                      "must be positive and finite, or 0, which leaves it to the server");
  }
  if (choice.max_iter < 1 || choice.max_iter > kMostIterations) {
    return FieldError(field + ".implicit.max_iter",
                      absl::StrCat(choice.max_iter, " is not in 1 to ", kMostIterations));
  }
  if (choice.restart != 0 && choice.solver != LoopChoice::Solver::kGmres) {
    return FieldError(field + ".implicit.restart", "is of solver gmres alone; leave it out");
  }
  if (choice.restart < 0 || choice.restart > kMostRestart) {
    return FieldError(field + ".implicit.restart",
                      absl::StrCat(choice.restart, " is not in 1 to ", kMostRestart,
                                   "; 0 leaves it to the server"));
  }
  if (choice.solver == LoopChoice::Solver::kGmres && choice.max_iter < 2) {
    return FieldError(
        field + ".implicit.max_iter",
        "must be at least 2 with solver gmres, whose last turn looks at the residual");
  }
  if (!(choice.damping >= 0) || !std::isfinite(choice.damping)) {
    return FieldError(field + ".implicit.damping", "must be at least 0 and finite");
  }
  return absl::OkStatus();
}

// `numbers`: of the choices, from 1 on, by site.
void Mark(Region& region, const std::map<std::string, int64_t>& numbers, PassBudget& budget) {
  for (Op& op : region.ops) {
    budget.Visit();
    for (Region& nested : op.regions) Mark(nested, numbers, budget);
    if (op.code != OpCode::kWhile || op.attributes.site.empty()) continue;
    const auto number = numbers.find(std::string(BaseOfSite(op.attributes.site)));
    if (number != numbers.end()) op.attributes.last = number->second;
  }
}

}  // namespace

absl::Status CheckChoices(const Program& world, const std::vector<LoopChoice>& loops) {
  if (loops.empty()) return absl::OkStatus();
  std::map<std::string, std::vector<const Op*>> known;
  Collect(world.step, known);
  std::set<std::string> named;
  for (size_t i = 0; i < loops.size(); ++i) {
    const LoopChoice& choice = loops[i];
    const std::string field = absl::StrCat("loops[", i, "]");
    const auto found = known.find(choice.site);
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const auto& [site, ops] : known) names.push_back(site);
      return FieldError(
          field + ".site",
          absl::StrCat("world '", world.name, "' has no loop '", choice.site,
                       "' in its step; a name is that of all loops that were given it; its loops: ",
                       NameList(names)));
    }
    if (!named.insert(choice.site).second) {
      return FieldError(field + ".site", absl::StrCat("'", choice.site, "' is named twice"));
    }
    if (absl::Status s = CheckNumbers(choice, field); !s.ok()) return s;
    if (choice.how != How::kImplicit) continue;
    for (const Op* loop : found->second) {
      if (loop->attributes.elements == 0) continue;
      return FieldError(field, absl::StrCat("loop '", choice.site,
                                            "' runs per element; implicit is for a whole loop"));
    }
  }
  return absl::OkStatus();
}

Program MarkChoices(Program program, const std::vector<LoopChoice>& loops, PassBudget& budget) {
  std::map<std::string, int64_t> numbers;
  for (size_t i = 0; i < loops.size(); ++i) {
    numbers[loops[i].site] = static_cast<int64_t>(i) + 1;
  }
  if (!numbers.empty()) Mark(program.step, numbers, budget);
  return program;
}

const LoopChoice* ChoiceOf(const Op& loop, const std::vector<LoopChoice>& loops) {
  const int64_t number = loop.attributes.last;
  return number == 0 ? nullptr : &loops[static_cast<size_t>(number - 1)];
}

}  // namespace simgrad::sim
