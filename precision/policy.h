// The precision policy: which format, overflow mode and reduction order each role computes in.
//
// A caller writes a PolicySpec: a preset, overrides by role, overrides by site. Resolve turns it
// into a Policy with every setting filled in. A site overrides a role, a role the preset.
// Source: docs/numerics.md section 8.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "precision/format.h"
#include "precision/reduction.h"

namespace simgrad::precision {

// The purpose of a value. Every table, message and metric lists the roles in this order.
enum class Role : uint8_t {
  kState,
  kDynamics,
  kSolver,
  kTermination,
  kEvent,
  kNetwork,
  kObjective,
  kTape,
  kAdjoint,
  kGradient,
};
inline constexpr int kRoleCount = 10;

std::string_view RoleName(Role role);
std::optional<Role> RoleFromName(std::string_view name);

// An order of sums. `seed` draws the permutation of order shuffled (precision/shuffle.h) and is 0
// for every other.
struct SumOrder {
  Order kind = Order::kPairwise;
  uint64_t seed = 0;
  constexpr SumOrder() = default;
  constexpr SumOrder(Order order, uint64_t its_seed = 0) : kind(order), seed(its_seed) {}  // NOLINT
  bool operator==(const SumOrder&) const = default;
};

// The text of an order: "pairwise", "shuffled(7)".
std::string TextOf(const SumOrder& order);
// The order with this text. Nothing for any other text, such as "shuffled" without a seed. A seed
// is decimal and below 2^64.
std::optional<SumOrder> SumOrderFromText(std::string_view text);
// The names of all orders, in the order of the enum; "shuffled(seed)" stands for all seeds.
const std::vector<std::string>& SumOrderNames();

// How matmul adds its products: in an order, or as a chain of fma where there is none.
struct Products {
  std::optional<SumOrder> order;
  bool operator==(const Products&) const = default;
};

// "fma_chain", or the text of the order.
std::string TextOf(const Products& products);
std::optional<Products> ProductsFromText(std::string_view text);

// The divisor of values of an 8-bit format before they are rounded (precision/quantize.h).
enum class Scale : uint8_t {
  kNone,
  kAmax,  // a power of two for each value of an instance, by its largest magnitude
};
std::string_view ScaleName(Scale scale);
std::optional<Scale> ScaleFromName(std::string_view name);

// How one role, or one site, computes.
struct RoleSetting {
  Format format = Format::kF32;
  Overflow overflow = Overflow::kIeee;
  SumOrder order = Order::kPairwise;
  Format accumulator = Format::kF32;
  CastRounding rounding = CastRounding::kNearestEven;  // of casts into the role
  Products products = {};
  // Set: matmul rounds its operands so to tf32 (precision/tf32.h). The format is f32 then, and casts
  // into the role round to nearest even.
  std::optional<CastRounding> inputs = std::nullopt;
  Scale scale = Scale::kNone;
  // The format that the role computes in: with a scale, its accumulator. Values that enter the role
  // are then rounded to `format` first.
  Format computes_in() const { return scale == Scale::kNone ? format : accumulator; }
  bool operator==(const RoleSetting&) const = default;
};

// Settings that a caller overrides; an unset field leaves the setting as it was.
struct RoleOverride {
  std::optional<Format> format;
  std::optional<Overflow> overflow;
  std::optional<SumOrder> order;
  std::optional<Format> accumulator;
  std::optional<CastRounding> rounding;  // in tf32 that of what matmul reads
  std::optional<Products> products = std::nullopt;
  bool is_tf32 = false;  // beside format f32
  std::optional<Scale> scale = std::nullopt;
  bool operator==(const RoleOverride&) const = default;
};

// The treatment of an instance whose state becomes non-finite.
enum class NonFinite : uint8_t {
  kReport,  // it runs on and is reported
  kStop,    // it returns to the state at the start of the step and stays there
};

struct PolicySpec {
  std::string preset = "f32";
  std::vector<std::pair<std::string, RoleOverride>> roles;  // by role name
  std::vector<std::pair<std::string, RoleOverride>> sites;  // by site name
  std::optional<double> loss_scale;                         // unset: the preset's
  NonFinite nonfinite = NonFinite::kReport;
};

struct Policy {
  std::string preset;
  std::array<RoleSetting, kRoleCount> roles;
  std::vector<std::pair<std::string, RoleOverride>> sites;
  double loss_scale = 1.0;  // fixed; 1 where the preset has none
  NonFinite nonfinite = NonFinite::kReport;

  const RoleSetting& operator[](Role role) const { return roles[static_cast<size_t>(role)]; }
  // The setting in force for an operation of `role` that belongs to `site` (empty: to none).
  RoleSetting At(Role role, std::string_view site) const;
};

struct PolicyError {
  std::string field;    // for example "roles[1].format"
  std::string message;  // what is wrong, with the value, and what would be right
};

// Fills a spec in, or says what is wrong with it. Site names are checked against a program later
// (sim/program/assign.h), because only a program knows its sites.
std::variant<Policy, PolicyError> Resolve(const PolicySpec& spec);

// Names of the presets, in the order of docs/numerics.md section 8.
const std::vector<std::string>& PresetNames();

}  // namespace simgrad::precision
