#include "sim/program/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/op/expansion.h"
#include "sim/program/assign.h"
#include "sim/program/decision_margin.h"
#include "sim/program/differentiate.h"
#include "sim/program/draws.h"
#include "sim/program/field_error.h"
#include "sim/program/halts.h"
#include "sim/program/infinities.h"
#include "sim/program/loop_choice.h"
#include "sim/program/name_tests.h"
#include "sim/program/objective.h"
#include "sim/program/own_vjp.h"
#include "sim/program/path_start.h"
#include "sim/program/paths.h"
#include "sim/program/print.h"
#include "sim/program/record_margins.h"
#include "sim/program/renumber.h"
#include "sim/program/simplify.h"
#include "sim/program/told.h"

namespace simgrad::sim {
namespace {

using RolesBySite = std::map<std::string, std::set<Role>>;

// Adds the roles of operations by the site that they bear.
void AddRoles(const Region& region, RolesBySite& roles, PassBudget& budget) {
  for (const Op& op : region.ops) {
    budget.Visit();
    if (!op.site.empty()) roles[op.site].insert(op.role);
    if (op.code == OpCode::kEvent) {
      roles[std::string(BaseOfSite(WorldSite(op.attributes.site)))].insert(op.role);
    }
    for (const Region& nested : op.regions) AddRoles(nested, roles, budget);
  }
}

RolesBySite RolesOf(const Program& world, PassBudget& budget) {
  RolesBySite roles;
  AddRoles(world.initial, roles, budget);
  AddRoles(world.step, roles, budget);
  for (const Objective& objective : world.objectives) {
    AddRoles(objective.stage, roles, budget);
    AddRoles(objective.terminal, roles, budget);
  }
  return roles;
}

// A setting of the casts at site i must bear on a role that operations have there. `plain`: the policy
// without sites, so that a look at one site does not read all.
absl::Status CheckCasts(const precision::Policy& policy, precision::Policy& plain, size_t i,
                        const std::set<Role>& roles) {
  const std::string& name = policy.sites[i].first;
  const precision::RoleOverride& change = policy.sites[i].second;
  plain.sites = {policy.sites[i]};
  const auto any = [&](const auto& holds) {
    return roles.empty() || std::any_of(roles.begin(), roles.end(),
                                        [&](Role role) { return holds(plain.At(role, name)); });
  };
  const auto is_scaled = [](const precision::RoleSetting& setting) {
    return setting.scale != precision::Scale::kNone;
  };
  const bool has_free = any([&](const auto& setting) { return !is_scaled(setting); });
  const std::string field = absl::StrCat("policy.sites[", i, "]");
  if (change.overflow == precision::Overflow::kIeee && !has_free) {
    return FieldError(field + ".overflow", absl::StrCat("role network has scale amax at site '",
                                                        name, "', and saturates; leave it out"));
  }
  const auto rounding = change.rounding.value_or(precision::CastRounding::kNearestEven);
  const bool rounds = any([&](const precision::RoleSetting& setting) {
    return setting.inputs || (setting.format != Format::kF64 && !is_scaled(setting));
  });
  if (rounding == precision::CastRounding::kNearestEven || rounds) return absl::OkStatus();
  return FieldError(
      field + ".rounding",
      absl::StrCat(has_free ? "every value cast" : "role network has scale amax", " at site '",
                   name, has_free ? "' is exact in f64" : "', and rounds to nearest_even", ", so ",
                   std::string(precision::CastRoundingName(rounding)),
                   " would change nothing; leave it out"));
}

// A policy names sites, and operations by the site that they bear.
absl::Status CheckSites(const Program& world, const precision::Policy& policy, bool adjoint,
                        PassBudget& budget) {
  if (policy.sites.empty()) return absl::OkStatus();
  std::set<std::string> known;
  std::vector<std::string> names;
  for (const Site& site : SitesOf(world, &budget)) {
    if (known.insert(site.name).second) names.push_back(site.name);
  }
  RolesBySite roles = RolesOf(world, budget);
  for (const auto& [name, of_operations] : roles) {
    if (known.insert(name).second) names.push_back(name);
  }
  precision::Policy plain = policy;
  plain.sites.clear();
  for (size_t i = 0; i < policy.sites.size(); ++i) {
    budget.Visit();
    const std::string& name = policy.sites[i].first;
    if (known.count(name) == 0) {
      return FieldError(absl::StrCat("policy.sites[", i, "].site"),
                        absl::StrCat("world '", world.name, "' has no site '", name,
                                     "'; its sites: ", NameList(names)));
    }
    std::set<Role> at = roles[name];
    if (adjoint && !at.empty()) at.insert(Role::kAdjoint);
    if (absl::Status status = CheckCasts(policy, plain, i, at); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckWanted(const Program& world, const AdjointSpec& spec) {
  for (size_t i = 0; i < spec.wanted.size(); ++i) {
    if (!spec.wanted[i] || IsDifferentiable(world, world.inputs[i])) continue;
    const Input& input = world.inputs[i];
    return FieldError(
        absl::StrCat("wrt[", std::string(InputKindName(input.kind)), ".", input.name, "]"),
        "only real states, params and controls have gradients");
  }
  return absl::OkStatus();
}

bool RoundsByChance(const precision::Policy& policy) {
  const auto by_chance = [](const auto& setting) {
    return setting.rounding == precision::CastRounding::kStochastic;
  };
  return std::any_of(policy.roles.begin(), policy.roles.end(), by_chance) ||
         std::any_of(policy.sites.begin(), policy.sites.end(),
                     [&](const auto& site) { return by_chance(site.second); });
}

absl::Status CheckAsked(const Program& world, const precision::Policy& policy,
                        const std::string& objective, const std::optional<AdjointSpec>& adjoint,
                        const LowerOptions& options, PassBudget& budget) {
  if (adjoint && !options.margins.empty()) {
    return FieldError("diagnostics.margins", "a rollout tells them, a gradient does not");
  }
  if (options.path == PathUse::kForced && RoundsByChance(policy)) {
    return FieldError(
        "path",
        "a run that follows a path would draw other roundings than a plain one, as its "
        "casts have other numbers; take a policy without stochastic rounding");
  }
  if (!objective.empty() && world.FindObjective(objective) == nullptr) {
    std::vector<std::string> names;
    for (const Objective& known : world.objectives) names.push_back(known.name);
    return FieldError("objective", absl::StrCat("world '", world.name, "' has no objective '",
                                                objective, "'; its objectives: ", NameList(names)));
  }
  if (absl::Status status = CheckSites(world, policy, adjoint.has_value(), budget); !status.ok())
    return status;
  if (!adjoint) return absl::OkStatus();
  if (absl::Status status = CheckWanted(world, *adjoint); !status.ok()) return status;
  return CheckChoices(world, adjoint->loops);
}

// Counts the world itself as written, as it is part of the lowered program.
void CountWorld(const Program& program, PassBudget& budget) {
  for (const Value& value : program.values) budget.WroteValue(value);
  budget.WroteRegion(program.initial);
  budget.WroteRegion(program.step);
  for (const Objective& objective : program.objectives) {
    budget.WroteRegion(objective.stage);
    budget.WroteRegion(objective.terminal);
  }
}

// The run gives its path, or takes one; of what the world had been its structure says what fits.
NumericalProgram WithPath(NumericalProgram p, PathUse use, const std::string& structure,
                          PassBudget& budget) {
  if (use == PathUse::kNone) return p;
  p = use == PathUse::kRecorded ? RecordPath(std::move(p), budget)
                                : ForcePath(std::move(p), budget);
  p.path->structure = DigestOf(structure, *p.path, budget);
  return p;
}

// Nothing is differentiated by the state that passes added.
void LeaveOutPathStart(const Program& program, AdjointSpec& spec) {
  const std::optional<size_t> before = StatesBeforePathStart(program);
  if (!before) return;
  const auto leave_out = [&](std::vector<bool>& states) {
    if (states.size() >= *before)
      states.insert(states.begin() + static_cast<int64_t>(*before), false);
  };
  leave_out(spec.final_state);
  leave_out(spec.trajectory_state);
  leave_out(spec.wanted);
}

// The passes, in order.
NumericalProgram Lowered(const Program& world, const precision::Policy& policy,
                         const std::string& objective, const std::optional<AdjointSpec>& adjoint,
                         const LowerOptions& options, PassBudget& budget) {
  CountWorld(world, budget);
  auto [halted, spec] = ExpandHalts(world, adjoint, budget);
  Program expanded = ExpandComposites(std::move(halted), budget);
  std::unordered_set<std::string> overridden;
  for (const auto& [site, change] : policy.sites) overridden.insert(site);
  expanded = NameTests(NumberDraws(std::move(expanded), budget), overridden, budget);
  const std::string structure = options.path == PathUse::kNone ? "" : StructureOf(expanded, budget);
  if (spec) expanded = MarkChoices(std::move(expanded), spec->loops, budget);
  NumericalProgram p = ChooseObjective(std::move(expanded), objective, budget);
  p.policy = policy;
  p = WithPath(std::move(p), options.path, structure, budget);
  if (spec) LeaveOutPathStart(p.program, *spec);
  p.program = Simplify(std::move(p.program), {p.stage_cost}, budget);
  p = BringIntoObjective(std::move(p), budget);
  if (spec) {
    spec->wanted.resize(p.program.inputs.size());  // none of the inputs that passes added
    spec->trajectory_export.resize(p.program.exports.size());
    p = Differentiate(std::move(p), *spec, budget);
  }
  p = RemoveOwnVjps(std::move(p), budget);
  p = AssignPrecision(std::move(p), budget);
  p = RemoveUnread(std::move(p), budget);
  p = NumberCasts(std::move(p), budget);
  p = PlaceTold(std::move(p), budget);
  p = MarkUsedInputs(std::move(p), budget);
  p = Renumber(std::move(p), budget);
  p = MarkInfinities(std::move(p), budget);
  ProgramText text = PrintParts(p, &budget);
  p.fingerprint = Fingerprint(text.text, &budget);
  p.forward_fingerprint = ForwardFingerprint(text, &budget);
  p.text = std::move(text.text);
  p.sites = SitesOf(p.program, &budget);
  p.halts = HaltNames(world, &budget);
  p.deciding_tests = DecidingTestsOf(p.program, p.sites, &budget).names;
  if (options.margins.empty()) return p;
  return RecordMargins(std::move(p), options.margins, budget);
}

}  // namespace

bool IsDifferentiable(const Program& program, const Input& input) {
  const bool kind = input.kind == InputKind::kState || input.kind == InputKind::kParam ||
                    input.kind == InputKind::kControl;
  return kind && program.IsReal(input.value);
}

absl::StatusOr<NumericalProgram> Lower(const Program& world, const precision::Policy& policy,
                                       const std::string& objective,
                                       const std::optional<AdjointSpec>& adjoint,
                                       PassBudget* budget, const LowerOptions& options) {
  PassBudget own;
  PassBudget& counted = budget != nullptr ? *budget : own;
  absl::StatusOr<NumericalProgram> lowered;
  const absl::Status ended = WithinBudget([&] {
    absl::Status status = CheckAsked(world, policy, objective, adjoint, options, counted);
    if (status.ok()) {
      lowered = Lowered(world, policy, objective, adjoint, options, counted);
    } else {
      lowered = std::move(status);
    }
  });
  if (!ended.ok()) return ended;
  return lowered;
}

}  // namespace simgrad::sim
