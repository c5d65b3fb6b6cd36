#include "server/conversion/policy.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/conversion/loss_scaler.h"
#include "server/validation/request_error.h"

namespace simgrad::server::conversion {
namespace {

using validation::InvalidField;

// As messages name format f32 with operands of matmul in tf32.
constexpr char kTf32[] = "tf32";

// `value` empty: not set here.
template <class T, class Parse>
absl::Status ReadName(const std::string& value, Parse parse, const std::string& field,
                      const std::string& known, std::optional<T>& out) {
  if (value.empty()) return absl::OkStatus();
  out = parse(value);
  if (out) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("unknown value '", value, "'; one of ", known));
}

absl::StatusOr<precision::RoleOverride> ReadSetting(const v1::RoleSetting& message,
                                                    const std::string& field) {
  const std::string formats = "f64, f32, bf16, f16, e4m3, e5m2";
  const std::string orders = absl::StrCat(absl::StrJoin(precision::SumOrderNames(), ", "),
                                          ", with a seed from 0 to 2^64 - 1: shuffled(7)");
  precision::RoleOverride setting;
  setting.is_tf32 = message.format() == kTf32;
  if (setting.is_tf32) setting.format = precision::Format::kF32;
  absl::Status status =
      setting.is_tf32 ? absl::OkStatus()
                      : ReadName(message.format(), precision::FormatFromName, field + ".format",
                                 absl::StrCat(formats, ", ", kTf32), setting.format);
  if (status.ok()) {
    status = ReadName(message.overflow(), precision::OverflowFromName, field + ".overflow",
                      "ieee, saturate", setting.overflow);
  }
  if (status.ok()) {
    status = ReadName(message.order(), precision::SumOrderFromText, field + ".order", orders,
                      setting.order);
  }
  if (status.ok()) {
    status = ReadName(message.accumulator(), precision::FormatFromName, field + ".accumulator",
                      "f64, f32, bf16, f16", setting.accumulator);
  }
  if (status.ok()) {
    status = ReadName(message.rounding(), precision::CastRoundingFromName, field + ".rounding",
                      "nearest_even, nearest_away, toward_zero, stochastic", setting.rounding);
  }
  if (status.ok()) {
    status = ReadName(message.products(), precision::ProductsFromText, field + ".products",
                      absl::StrCat("fma_chain, ", orders), setting.products);
  }
  if (status.ok()) {
    status = ReadName(message.scale(), precision::ScaleFromName, field + ".scale", "none, amax",
                      setting.scale);
  }
  if (!status.ok()) return status;
  return setting;
}

// precision::Resolve names "roles[1].format"; the message has it at "roles[1].setting.format".
std::string MessagePath(const std::string& field) {
  if (field == "loss_scale") return "loss_scale.fixed";
  const size_t dot = field.find("].");
  if (dot == std::string::npos) return field;
  const std::string leaf = field.substr(dot + 2);
  if (leaf == "role" || leaf == "site") return field;
  return absl::StrCat(field.substr(0, dot + 2), "setting.", leaf);
}

void WriteOverride(const precision::RoleOverride& change, v1::RoleSetting& out) {
  if (change.format) {
    out.set_format(std::string(change.is_tf32 ? kTf32 : precision::FormatName(*change.format)));
  }
  if (change.overflow) out.set_overflow(std::string(precision::OverflowName(*change.overflow)));
  if (change.order) out.set_order(precision::TextOf(*change.order));
  if (change.accumulator) {
    out.set_accumulator(std::string(precision::FormatName(*change.accumulator)));
  }
  if (change.rounding) {
    out.set_rounding(std::string(precision::CastRoundingName(*change.rounding)));
  }
  if (change.products) out.set_products(precision::TextOf(*change.products));
  if (change.scale) out.set_scale(std::string(precision::ScaleName(*change.scale)));
}

}  // namespace

std::string ExecutionOf(precision::Format format) {
  const bool native = format == precision::Format::kF64 || format == precision::Format::kF32;
  return native ? "native" : "emulated";
}

absl::StatusOr<precision::Policy> PolicyFromProto(const v1::Policy& message,
                                                  const std::string& field) {
  precision::PolicySpec spec;
  if (!message.preset().empty()) spec.preset = message.preset();
  for (int i = 0; i < message.roles_size(); ++i) {
    const v1::RoleOverride& role = message.roles(i);
    auto setting = ReadSetting(role.setting(), absl::StrCat(field, ".roles[", i, "].setting"));
    if (!setting.ok()) return setting.status();
    spec.roles.emplace_back(role.role(), *setting);
  }
  for (int i = 0; i < message.sites_size(); ++i) {
    const v1::SiteOverride& site = message.sites(i);
    auto setting = ReadSetting(site.setting(), absl::StrCat(field, ".sites[", i, "].setting"));
    if (!setting.ok()) return setting.status();
    spec.sites.emplace_back(site.site(), *setting);
  }
  if (message.loss_scale().mode_case() == v1::LossScale::kFixed) {
    const double fixed = message.loss_scale().fixed();
    if (!(fixed >= precision::kLeastFixedLossScale && fixed <= precision::kMostFixedLossScale)) {
      return InvalidField(field + ".loss_scale.fixed",
                          absl::StrCat("a fixed loss scale is a number from 2^-127 to 2^127, whose "
                                       "inverse is a number of f32, not ",
                                       fixed));
    }
    spec.loss_scale = fixed;
  }
  if (message.loss_scale().mode_case() == v1::LossScale::kDynamic) {
    const std::string at = field + ".loss_scale.dynamic";
    const v1::DynamicLossScale& scaler = message.loss_scale().dynamic();
    if (absl::Status status = CheckLossScaler(scaler, at); !status.ok()) return status;
    spec.loss_scale = ScaleOf(scaler);
  }
  spec.nonfinite = message.non_finite() == v1::NON_FINITE_POLICY_STOP
                       ? precision::NonFinite::kStop
                       : precision::NonFinite::kReport;
  auto resolved = precision::Resolve(spec);
  if (const auto* error = std::get_if<precision::PolicyError>(&resolved)) {
    return InvalidField(absl::StrCat(field, ".", MessagePath(error->field)), error->message);
  }
  // A fixed scale of 1 scales nothing; a dynamic one that is 1 now grows.
  const precision::Policy& policy = std::get<precision::Policy>(resolved);
  for (int i = 0; message.loss_scale().has_dynamic() && i < message.roles_size(); ++i) {
    for (const auto role : {precision::Role::kGradient, precision::Role::kAdjoint}) {
      if (message.roles(i).role() != precision::RoleName(role)) continue;
      if (policy[role].overflow == precision::Overflow::kIeee) continue;
      return InvalidField(absl::StrCat(field, ".roles[", i, "].setting.overflow"),
                          absl::StrCat("role ", std::string(precision::RoleName(role)),
                                       " that saturates hides from a dynamic loss scale that a "
                                       "number went beyond its format; leave its overflow out"));
    }
  }
  return std::get<precision::Policy>(std::move(resolved));
}

v1::ResolvedPolicy PolicyToProto(const precision::Policy& policy) {
  v1::ResolvedPolicy out;
  out.set_preset(policy.preset);
  for (int i = 0; i < precision::kRoleCount; ++i) {
    const auto role = static_cast<precision::Role>(i);
    const precision::RoleSetting& setting = policy[role];
    v1::ResolvedRole* message = out.add_roles();
    message->set_role(std::string(precision::RoleName(role)));
    const bool is_tf32 = setting.inputs.has_value();
    WriteOverride({.format = setting.format,
                   .overflow = setting.overflow,
                   .order = setting.order,
                   .accumulator = setting.accumulator,
                   .rounding = setting.inputs.value_or(setting.rounding),
                   .products = setting.products,
                   .is_tf32 = is_tf32,
                   .scale = setting.scale},
                  *message->mutable_setting());
    message->set_execution(is_tf32 ? "emulated" : ExecutionOf(setting.format));
    message->set_guarantee("bitwise");
  }
  for (const auto& [name, change] : policy.sites) {
    v1::SiteOverride* message = out.add_sites();
    message->set_site(name);
    WriteOverride(change, *message->mutable_setting());
  }
  out.set_loss_scale(policy.loss_scale);
  out.set_non_finite(policy.nonfinite == precision::NonFinite::kStop
                         ? v1::NON_FINITE_POLICY_STOP
                         : v1::NON_FINITE_POLICY_REPORT);
  return out;
}

}  // namespace simgrad::server::conversion
