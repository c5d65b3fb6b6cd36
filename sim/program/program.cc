#include "sim/program/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "precision/hash.h"
#include "sim/program/decision_margin.h"
#include "sim/program/loop.h"
#include "sim/program/pass_budget.h"

namespace simgrad::sim {
namespace {

void CollectSites(const Region& region, const Program& program, int64_t mapped,
                  std::vector<Site>& sites, PassBudget& budget) {
  for (const Op& op : region.ops) {
    budget.Visit();
    if (IsTest(op)) {
      const int64_t own = ElementCount(program[op.results[0]].type.shape);
      sites.push_back({op.attributes.site, SiteKind::kEvent, mapped * own, 0, 0, op.attributes.kind,
                       op.code == OpCode::kChoice});
    }
    // In a world, these are the operations that lowering turns into events.
    const bool is_named =
        ComparesTwo(op) && program.IsReal(op.operands[0]) && !op.attributes.site.empty();
    if (op.code == OpCode::kAccept || is_named) {
      const int64_t own = ElementCount(program[op.operands[0]].type.shape);
      const TestKind kind = is_named ? op.attributes.kind : TestKind::kAcceptance;
      sites.push_back({op.attributes.site, SiteKind::kEvent, mapped * own, 0, 0, kind});
    }
    int64_t inside = mapped;
    if (op.code == OpCode::kWhile && !IsBranch(op)) {
      if (op.attributes.elements > 0) inside *= op.attributes.elements;
      sites.push_back({op.attributes.site, SiteKind::kTermination, inside, op.attributes.max_iter});
    }
    for (const Region& nested : op.regions) {
      CollectSites(nested, program, inside, sites, budget);
      if (op.code == OpCode::kCall) break;  // a vjp has no sites
    }
  }
}

}  // namespace

std::string_view TestLevelName(TestLevel level) {
  constexpr std::array<std::string_view, 4> kNames = {"", "loops", "decisions", "all"};
  return kNames[static_cast<size_t>(level)];
}

std::string_view TestKindName(TestKind kind) {
  constexpr std::array<std::string_view, 8> kNames = {
      "", "termination", "event", "weight", "guard", "acceptance", "membership", "halt"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<TestKind> TestKindFromName(std::string_view name) {
  for (TestKind kind :
       {TestKind::kGuard, TestKind::kAcceptance, TestKind::kMembership, TestKind::kHalt}) {
    if (TestKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string_view BaseOfSite(std::string_view name) { return name.substr(0, name.find('#')); }

uint64_t HashOfSite(std::string_view name) {
  const std::string_view base = BaseOfSite(name);
  const uint64_t hash = precision::Fnv1a64(base);
  if (base.size() == name.size()) return hash;
  uint64_t occurrence = 0;
  for (const char digit : name.substr(base.size() + 1)) {
    occurrence = 10 * occurrence + static_cast<uint64_t>(digit - '0');
  }
  return precision::SplitMix64(hash ^ occurrence);
}

std::string_view ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kReal:
      return "real";
    case ElementType::kI32:
      return "i32";
    case ElementType::kI64:
      return "i64";
    case ElementType::kBool:
      return "bool";
    case ElementType::kU32:
      return "u32";
    case ElementType::kU8:
      return "u8";
  }
  return "?";
}

std::string_view InputKindName(InputKind kind) {
  switch (kind) {
    case InputKind::kState:
      return "state";
    case InputKind::kParam:
      return "param";
    case InputKind::kControl:
      return "control";
    case InputKind::kData:
      return "data";
    case InputKind::kConfig:
      return "config";
    case InputKind::kStep:
      return "step";
  }
  return "?";
}

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

ValueId Program::AddValue(Type type, std::string value_name) {
  values.push_back({std::move(type), std::move(value_name), std::nullopt});
  return static_cast<ValueId>(values.size() - 1);
}

const Input* Program::FindInput(InputKind kind, std::string_view input_name) const {
  for (const Input& input : inputs) {
    if (input.kind == kind && input.name == input_name) return &input;
  }
  return nullptr;
}

std::vector<int32_t> Program::InputsOf(InputKind kind) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind == kind) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

const Objective* Program::FindObjective(std::string_view objective_name) const {
  for (const Objective& objective : objectives) {
    if (objective.name == objective_name) return &objective;
  }
  return nullptr;
}

std::vector<Site> SitesOf(const Program& program, PassBudget* budget) {
  PassBudget unlimited;
  std::vector<Site> sites;
  CollectSites(program.step, program, 1, sites, budget ? *budget : unlimited);
  int32_t terminations = 0;
  int32_t events = 0;
  for (Site& site : sites) {
    site.number = site.kind == SiteKind::kTermination ? terminations++ : events++;
  }
  return sites;
}

size_t CountOf(const std::vector<Site>& sites, SiteKind kind) {
  return static_cast<size_t>(
      std::count_if(sites.begin(), sites.end(), [&](const Site& s) { return s.kind == kind; }));
}

size_t RealStates(const Program& program) {
  size_t real = 0;
  for (const Input& input : program.inputs) {
    const bool state = input.kind == InputKind::kState;
    real += state && program.IsReal(input.value) ? 1 : 0;
  }
  return real;
}

WhileCounts CountsOf(const Op& while_op) {
  WhileCounts counts;
  counts.carried = while_op.attributes.carried;
  counts.mapped = static_cast<int32_t>(while_op.operands.size()) - counts.carried;
  counts.exports = static_cast<int32_t>(while_op.results.size()) - counts.carried - 1;
  return counts;
}

}  // namespace simgrad::sim
