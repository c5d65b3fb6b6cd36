#include "precision/policy.h"

#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

namespace simgrad::precision {
namespace {

constexpr std::array<std::string_view, kRoleCount> kRoleNames = {
    "state",   "dynamics",  "solver", "termination", "event",
    "network", "objective", "tape",   "adjoint",     "gradient"};

// One row of docs/numerics.md section 8.
struct Preset {
  std::string_view name;
  Format bulk;      // state, dynamics, solver
  Format decision;  // termination, event
  Format network;
  Format objective;  // objective, gradient
  Format tape;
  Format adjoint;
  Order order;
  double loss_scale;
  Overflow storage_overflow;  // of network and tape
  Scale network_scale = Scale::kNone;
};

constexpr Format kD = Format::kF64;
constexpr Format kS = Format::kF32;
constexpr Format kB = Format::kBf16;
constexpr Format kH = Format::kF16;
constexpr Format kE = Format::kE4m3;
constexpr Overflow kIeee = Overflow::kIeee;
constexpr Overflow kSat = Overflow::kSaturate;

constexpr std::array<Preset, 7> kPresets = {{
    {"f64", kD, kD, kD, kD, kD, kD, Order::kPairwise, 1, kIeee},
    {"f32", kS, kS, kS, kS, kS, kS, Order::kPairwise, 1, kIeee},
    {"bf16_unsafe", kB, kB, kB, kS, kB, kB, Order::kSequential, 1, kIeee},
    {"f16_unsafe", kH, kH, kH, kS, kH, kH, Order::kSequential, 1, kIeee},
    {"bf16_safe", kB, kS, kB, kS, kB, kB, Order::kPairwise, 1, kIeee},
    {"f16_safe", kH, kS, kH, kS, kH, kH, Order::kPairwise, 32768, kIeee},
    {"fp8_storage", kS, kS, kE, kS, kE, kS, Order::kPairwise, 1, kSat, Scale::kAmax},
}};

// adjoint, network, objective and gradient accumulate in at least f32.
Format DefaultAccumulator(Role role, Format format) {
  const bool wide = role == Role::kAdjoint || role == Role::kNetwork || role == Role::kObjective ||
                    role == Role::kGradient;
  return wide && format != Format::kF64 ? Format::kF32 : format;
}

Format PresetFormat(const Preset& preset, Role role) {
  switch (role) {
    case Role::kState:
    case Role::kDynamics:
    case Role::kSolver:
      return preset.bulk;
    case Role::kTermination:
    case Role::kEvent:
      return preset.decision;
    case Role::kNetwork:
      return preset.network;
    case Role::kObjective:
    case Role::kGradient:
      return preset.objective;
    case Role::kTape:
      return preset.tape;
    case Role::kAdjoint:
      return preset.adjoint;
  }
  return preset.bulk;
}

bool IsArithmetic(Format format) { return format != Format::kE4m3 && format != Format::kE5m2; }

// Formats that a role may take: storage roles may be FP8, the others compute.
bool Allows(Role role, Format format) {
  return IsArithmetic(format) || role == Role::kTape || role == Role::kNetwork;
}

void Apply(const RoleOverride& change, Role role, RoleSetting& setting) {
  if (change.format) {
    setting.format = *change.format;
    setting.accumulator = DefaultAccumulator(role, *change.format);
    if (change.is_tf32 || setting.inputs) setting.rounding = CastRounding::kNearestEven;
    setting.inputs.reset();
    if (change.is_tf32) setting.inputs = CastRounding::kNearestEven;
    if (IsArithmetic(*change.format)) setting.scale = Scale::kNone;
  }
  if (change.scale) setting.scale = *change.scale;
  if (change.scale == Scale::kAmax) setting.overflow = Overflow::kSaturate;
  if (change.overflow) setting.overflow = *change.overflow;
  if (change.order) setting.order = *change.order;
  if (change.accumulator) setting.accumulator = *change.accumulator;
  if (change.rounding) (setting.inputs ? *setting.inputs : setting.rounding) = *change.rounding;
  if (change.products) setting.products = *change.products;
}

// Nothing is cast into these: what is written on a tape and what is added up as a gradient is
// rounded where it is used.
bool RoundsByCasts(Role role) { return role != Role::kTape && role != Role::kGradient; }

// tf32 is no format of values: of a state, a comparison, a tape or a gradient it would say nothing.
bool AllowsTf32(Role role) {
  return role == Role::kDynamics || role == Role::kSolver || role == Role::kNetwork ||
         role == Role::kObjective || role == Role::kAdjoint;
}

std::optional<PolicyError> CheckTf32(Role role, const std::string& field) {
  if (AllowsTf32(role)) return std::nullopt;
  return PolicyError{field + ".format",
                     "tf32 is how matmul reads its operands and no format of values; role '" +
                         std::string(RoleName(role)) +
                         "' has f64, f32, bf16 or f16, and dynamics, solver, network, objective "
                         "and adjoint may have tf32"};
}

// `where` names the role, or the site and the role.
std::optional<PolicyError> CheckInputs(const RoleSetting& setting, const std::string& where,
                                       const std::string& field) {
  if (setting.inputs != CastRounding::kStochastic) return std::nullopt;
  return PolicyError{field + ".rounding", "matmul reads tf32 in " + where +
                                              ", rounded nearest_even, nearest_away or "
                                              "toward_zero, not stochastic"};
}

std::optional<PolicyError> CheckProducts(const RoleOverride& change, Role role,
                                         const std::string& field) {
  if (!change.products || !change.products->order || RoundsByCasts(role)) return std::nullopt;
  return PolicyError{field + ".products", "no matmul has role '" + std::string(RoleName(role)) +
                                              "', so " + TextOf(*change.products) +
                                              " would change nothing; leave its products out"};
}

// A rounding that could do nothing is an error: nobody learns otherwise that it did nothing.
std::optional<PolicyError> CheckRounding(const RoleOverride& change, Role role,
                                         const RoleSetting& setting, const std::string& field) {
  if (!change.rounding || *change.rounding == CastRounding::kNearestEven) return std::nullopt;
  const std::string rounding(CastRoundingName(*change.rounding));
  if (!RoundsByCasts(role)) {
    return PolicyError{field + ".rounding", "role '" + std::string(RoleName(role)) +
                                                "' rounds to nearest_even, not " + rounding +
                                                "; leave its rounding out"};
  }
  if (setting.format != Format::kF64) return std::nullopt;
  return PolicyError{field + ".rounding",
                     "every value cast into role '" + std::string(RoleName(role)) +
                         "' is exact in f64, so " + rounding +
                         " would change nothing; give the role a narrower format, or leave its "
                         "rounding out"};
}

// Values under a scale are those of fake_quantize, which saturates and rounds to nearest even.
std::optional<PolicyError> CheckScale(const RoleOverride& change, Role role,
                                      const RoleSetting& setting, const std::string& field) {
  const std::string name(RoleName(role));
  if (change.scale == Scale::kAmax && role != Role::kNetwork) {
    return PolicyError{field + ".scale", "role '" + name + "' takes no scale; role 'network' does"};
  }
  if (setting.scale == Scale::kNone) return std::nullopt;
  if (IsArithmetic(setting.format)) {
    const std::string format(setting.inputs ? "tf32" : FormatName(setting.format));
    return PolicyError{field + ".scale", "role '" + name + "' is in " + format +
                                             ", which needs no scale; e4m3 and e5m2 take one"};
  }
  if (setting.overflow == Overflow::kIeee) {
    return PolicyError{field + ".overflow",
                       "a role with scale amax saturates; leave overflow out, "
                       "or set scale to none"};
  }
  if (setting.rounding != CastRounding::kNearestEven) {
    return PolicyError{field + ".rounding", "a role with scale amax rounds to nearest_even, not " +
                                                std::string(CastRoundingName(setting.rounding)) +
                                                "; leave rounding out, or set scale to none"};
  }
  return std::nullopt;
}

std::optional<PolicyError> CheckOverride(const RoleOverride& change, const std::string& field) {
  if (change.accumulator && !IsArithmetic(*change.accumulator)) {
    return PolicyError{field + ".accumulator",
                       std::string(Traits(*change.accumulator).name) +
                           " is a storage format; an accumulator is f64, f32, bf16 or f16"};
  }
  return std::nullopt;
}

std::string PresetList() {
  std::string list;
  for (const std::string& name : PresetNames()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void FillRoles(const Preset& preset, Policy& policy) {
  for (int i = 0; i < kRoleCount; ++i) {
    const Role role = static_cast<Role>(i);
    const Format format = PresetFormat(preset, role);
    const bool storage = role == Role::kTape || role == Role::kNetwork;
    policy.roles[i] = {.format = format,
                       .overflow = storage ? preset.storage_overflow : Overflow::kIeee,
                       .order = preset.order,
                       .accumulator = DefaultAccumulator(role, format)};
    if (role == Role::kNetwork) policy.roles[i].scale = preset.network_scale;
  }
}

std::optional<PolicyError> ApplyRoles(const PolicySpec& spec, Policy& policy) {
  for (size_t i = 0; i < spec.roles.size(); ++i) {
    const std::string field = "roles[" + std::to_string(i) + "]";
    const auto& [name, change] = spec.roles[i];
    const std::optional<Role> role = RoleFromName(name);
    if (!role) {
      std::string list;
      for (std::string_view known : kRoleNames) {
        list += (list.empty() ? "" : ", ") + std::string(known);
      }
      return PolicyError{field + ".role", "unknown role '" + name + "'; one of " + list};
    }
    for (size_t k = 0; k < i; ++k) {
      if (spec.roles[k].first == name) {
        return PolicyError{field + ".role", "role '" + name + "' is set twice"};
      }
    }
    if (auto error = CheckOverride(change, field)) return error;
    if (change.format && !Allows(*role, *change.format)) {
      return PolicyError{field + ".format", std::string(Traits(*change.format).name) +
                                                " is a storage format; role '" + name +
                                                "' computes in f64, f32, bf16 or f16"};
    }
    if (change.is_tf32) {
      if (auto error = CheckTf32(*role, field)) return error;
    }
    RoleSetting& setting = policy.roles[static_cast<size_t>(*role)];
    Apply(change, *role, setting);
    if (auto error = CheckScale(change, *role, setting, field)) return error;
    if (auto error = CheckRounding(change, *role, setting, field)) return error;
    if (auto error = CheckProducts(change, *role, field)) return error;
    const std::string where = "role '" + name + "'";
    if (auto error = CheckInputs(setting, where, field)) return error;
  }
  return std::nullopt;
}

// A loss scale that is too large shows in gradients that are not finite.
std::optional<PolicyError> CheckOverflow(const PolicySpec& spec, const Policy& policy) {
  if (policy.loss_scale == 1 || policy[Role::kGradient].overflow == Overflow::kIeee) {
    return std::nullopt;
  }
  size_t i = 0;
  while (spec.roles[i].first != RoleName(Role::kGradient)) ++i;  // no preset saturates gradients
  return PolicyError{"roles[" + std::to_string(i) + "].overflow",
                     "a gradient that saturates hides that the loss scale takes it beyond its "
                     "format; leave its overflow out, or the loss scale"};
}

std::optional<PolicyError> CheckSites(const PolicySpec& spec) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < spec.sites.size(); ++i) {
    const std::string field = "sites[" + std::to_string(i) + "]";
    const auto& [name, change] = spec.sites[i];
    if (!names.insert(name).second) {
      return PolicyError{field + ".site", "site '" + name + "' is set twice"};
    }
    if (auto error = CheckOverride(change, field)) return error;
    if (change.scale) {
      return PolicyError{field + ".scale", "a site has no scale; role 'network' has one"};
    }
    if (change.format && !IsArithmetic(*change.format)) {
      return PolicyError{field + ".format", std::string(Traits(*change.format).name) +
                                                " is a storage format; a site computes in f64, "
                                                "f32, bf16 or f16"};
    }
    const bool is_exact = change.format == Format::kF64;
    if (is_exact &&
        change.rounding.value_or(CastRounding::kNearestEven) != CastRounding::kNearestEven) {
      return PolicyError{field + ".rounding",
                         "every value cast at site '" + name + "' is exact in f64, so " +
                             std::string(CastRoundingName(*change.rounding)) +
                             " would change nothing; give the site a narrower format, or leave "
                             "its rounding out"};
    }
  }
  return std::nullopt;
}

// A site may set the rounding of roles that have tf32.
std::optional<PolicyError> CheckInputsAtSites(const Policy& policy) {
  for (size_t i = 0; i < policy.sites.size(); ++i) {
    const auto& [site, change] = policy.sites[i];
    const std::string field = "sites[" + std::to_string(i) + "]";
    for (int k = 0; k < kRoleCount; ++k) {
      const Role role = static_cast<Role>(k);
      RoleSetting setting = policy[role];
      Apply(change, role, setting);
      const std::string where = "role '" + std::string(RoleName(role)) + "' at site '" + site + "'";
      if (auto error = CheckInputs(setting, where, field)) return error;
    }
  }
  return std::nullopt;
}

constexpr std::string_view kFmaChain = "fma_chain";

}  // namespace

std::string TextOf(const SumOrder& order) {
  std::string text(OrderName(order.kind));
  if (order.kind == Order::kShuffled) text += "(" + std::to_string(order.seed) + ")";
  return text;
}

std::optional<SumOrder> SumOrderFromText(std::string_view text) {
  const std::string_view opening = "shuffled(";
  if (text.substr(0, opening.size()) != opening || text.back() != ')') {
    const std::optional<Order> order = OrderFromName(text);
    if (!order || *order == Order::kShuffled) return std::nullopt;
    return *order;
  }
  const std::string_view digits = text.substr(opening.size(), text.size() - opening.size() - 1);
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return SumOrder(Order::kShuffled, seed);
}

std::string TextOf(const Products& products) {
  return products.order ? TextOf(*products.order) : std::string(kFmaChain);
}

std::optional<Products> ProductsFromText(std::string_view text) {
  if (text == kFmaChain) return Products{};
  const std::optional<SumOrder> order = SumOrderFromText(text);
  if (!order) return std::nullopt;
  return Products{order};
}

const std::vector<std::string>& SumOrderNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>;
    for (int i = 0; i < kOrderCount; ++i) {
      const auto order = static_cast<Order>(i);
      list->emplace_back(OrderName(order));
      if (order == Order::kShuffled) list->back() += "(seed)";
    }
    return list;
  }();
  return *names;
}

std::string_view ScaleName(Scale scale) { return scale == Scale::kAmax ? "amax" : "none"; }

std::optional<Scale> ScaleFromName(std::string_view name) {
  if (name == "none") return Scale::kNone;
  if (name == "amax") return Scale::kAmax;
  return std::nullopt;
}

std::string_view RoleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Role> RoleFromName(std::string_view name) {
  for (int i = 0; i < kRoleCount; ++i) {
    if (kRoleNames[i] == name) return static_cast<Role>(i);
  }
  return std::nullopt;
}

const std::vector<std::string>& PresetNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>;
    for (const Preset& preset : kPresets) list->emplace_back(preset.name);
    return list;
  }();
  return *names;
}

RoleSetting Policy::At(Role role, std::string_view site) const {
  RoleSetting setting = (*this)[role];
  if (site.empty()) return setting;
  for (const auto& [name, change] : sites) {
    if (name == site) Apply(change, role, setting);
  }
  return setting;
}

std::variant<Policy, PolicyError> Resolve(const PolicySpec& spec) {
  const Preset* preset = nullptr;
  for (const Preset& row : kPresets) {
    if (row.name == spec.preset) preset = &row;
  }
  if (preset == nullptr) {
    return PolicyError{"preset", "unknown preset '" + spec.preset + "'; one of " + PresetList()};
  }
  Policy policy;
  policy.preset = spec.preset;
  policy.nonfinite = spec.nonfinite;
  policy.loss_scale = spec.loss_scale.value_or(preset->loss_scale);
  if (!std::isfinite(policy.loss_scale) || policy.loss_scale <= 0) {
    std::ostringstream message;  // std::to_string would write 1e-9 as 0.000000
    message << "the loss scale is a finite number above 0, not " << policy.loss_scale;
    return PolicyError{"loss_scale", message.str()};
  }
  FillRoles(*preset, policy);
  if (auto error = ApplyRoles(spec, policy)) return *error;
  if (auto error = CheckOverflow(spec, policy)) return *error;
  if (auto error = CheckSites(spec)) return *error;
  policy.sites = spec.sites;
  if (auto error = CheckInputsAtSites(policy)) return *error;
  return policy;
}

}  // namespace simgrad::precision
