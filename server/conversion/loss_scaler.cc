#include "server/conversion/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"

namespace simgrad::server::conversion {
namespace {

using precision::LossScaleMode;
using validation::InvalidField;

constexpr char kTorch[] = "torch";
constexpr char kGuarded[] = "guarded";

absl::Status CheckScale(const v1::DynamicLossScale& scaler, const std::string& field) {
  const double scale = ScaleOf(scaler);
  if (!(scale > 0) || !std::isfinite(scale) ||
      static_cast<double>(static_cast<float>(scale)) != scale) {
    return InvalidField(field, absl::StrCat("is ", scale, "; a finite f32 above 0, 0 for 65536"));
  }
  const bool is_power = std::exp2(std::ilogb(scale)) == scale && scale >= 1;
  if (is_power || RuleOf(scaler).mode == LossScaleMode::kPytorch) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", scale,
                                          "; mode guarded keeps to powers of two from 1 on, mode "
                                          "torch does not"));
}

}  // namespace

absl::Status CheckLossScaler(const v1::DynamicLossScale& scaler, const std::string& field) {
  const std::string& mode = scaler.mode();
  if (!mode.empty() && mode != kTorch && mode != kGuarded) {
    return InvalidField(field + ".mode",
                        absl::StrCat("unknown mode '", mode, "'; one of guarded, torch"));
  }
  if (absl::Status status = CheckScale(scaler, field + ".scale"); !status.ok()) return status;
  const precision::LossScaleRule rule = RuleOf(scaler);
  if (scaler.clean() < 0) {
    return InvalidField(field + ".clean", absl::StrCat("is ", scaler.clean(), "; at least 0"));
  }
  if (!(rule.growth > 1) || !std::isfinite(rule.growth)) {
    return InvalidField(field + ".growth",
                        absl::StrCat("is ", rule.growth, "; finite and above 1, 0 for 2"));
  }
  if (!(rule.backoff > 0) || !(rule.backoff < 1)) {
    return InvalidField(field + ".backoff",
                        absl::StrCat("is ", rule.backoff, "; between 0 and 1, 0 for 0.5"));
  }
  // A scale that is taken to the power of two below would not grow by 1.5, and would halve for 0.9.
  const auto is_power = [](double x) { return std::exp2(std::ilogb(x)) == x; };
  for (const auto& [name, factor] :
       {std::pair("growth", rule.growth), std::pair("backoff", rule.backoff)}) {
    if (rule.mode == LossScaleMode::kPytorch || is_power(factor)) continue;
    return InvalidField(absl::StrCat(field, ".", name),
                        absl::StrCat("is ", factor, "; mode guarded keeps to powers of two, mode ",
                                     "torch does not"));
  }
  if (rule.interval < 1) {
    return InvalidField(field + ".interval",
                        absl::StrCat("is ", rule.interval, "; at least 1, 0 for 2000"));
  }
  return absl::OkStatus();
}

double ScaleOf(const v1::DynamicLossScale& scaler) {
  return scaler.scale() == 0 ? static_cast<double>(precision::LossScale().scale) : scaler.scale();
}

precision::LossScaleRule RuleOf(const v1::DynamicLossScale& scaler) {
  precision::LossScaleRule rule;
  rule.mode = scaler.mode() == kTorch ? LossScaleMode::kPytorch : LossScaleMode::kGuarded;
  if (scaler.growth() != 0) rule.growth = scaler.growth();
  if (scaler.backoff() != 0) rule.backoff = scaler.backoff();
  if (scaler.interval() != 0) rule.interval = scaler.interval();
  return rule;
}

bool IsClean(const v1::DynamicLossScale& scaler, const sim::WorkResult& result) {
  if (result.skipped) return false;
  if (RuleOf(scaler).mode == LossScaleMode::kPytorch) return true;
  for (const sim::InputGradient& gradient : result.gradients) {
    for (int64_t i = 0; i < gradient.gradient.count(); ++i) {
      if (!std::isfinite(gradient.gradient.Get(i))) return false;
    }
  }
  return true;
}

std::string WhySkipped(const sim::WorkResult& result) {
  for (const sim::BirthCertificate& birth : result.certificates) {
    if (birth.phase == sim::Phase::kInput) continue;
    // Instances that were finite before the adjoint made it skipped, where some are left out.
    if (result.overflowed > 0 && birth.phase != sim::Phase::kAdjoint) continue;
    const std::string site = birth.site.empty() ? "" : absl::StrCat(" of site '", birth.site, "'");
    return absl::StrCat("the gradient is skipped: ", birth.operation, site, " in step ", birth.step,
                        " of instance ", birth.instance_id, " gave ", birth.result);
  }
  return "the gradient is skipped: its sum over instances, or what was unscaled, is not finite";
}

v1::DynamicLossScale NextScaler(const v1::DynamicLossScale& scaler, bool is_clean) {
  const precision::LossScaleRule rule = RuleOf(scaler);
  const precision::LossScale next = precision::NextLossScale(
      rule, {static_cast<float>(ScaleOf(scaler)), scaler.clean()}, is_clean);
  v1::DynamicLossScale out;
  // 0 says "the first scale". PyTorch's scale comes to 0 after some 170 skips, and stays there.
  const float scale = std::max(next.scale, std::numeric_limits<float>::denorm_min());
  out.set_scale(static_cast<double>(scale));
  out.set_clean(next.clean);
  out.set_mode(rule.mode == LossScaleMode::kPytorch ? kTorch : kGuarded);
  out.set_growth(rule.growth);
  out.set_backoff(rule.backoff);
  out.set_interval(rule.interval);
  return out;
}

}  // namespace simgrad::server::conversion
