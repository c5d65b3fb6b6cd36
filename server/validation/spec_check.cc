#include "server/validation/spec_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/validation/path_check.h"
#include "server/validation/request_error.h"
#include "server/validation/tensor_check.h"

namespace simgrad::server::validation {
namespace {

absl::Status CheckRange(int64_t value, int64_t most, const std::string& field) {
  if (value < 0) {
    return InvalidField(field, absl::StrCat("must be from 0 to ", most, ", not ", value));
  }
  if (value > most) {
    return LimitExceeded(field, absl::StrCat(value, " is above this server's limit of ", most));
  }
  return absl::OkStatus();
}

absl::Status CheckNotNegative(int64_t value, const std::string& field) {
  if (value >= 0) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be at least 0, not ", value));
}

absl::Status CheckDiagnostics(const v1::DiagnosticsOptions& options, const RequestLimits& limits,
                              const std::string& field) {
  if (!v1::DiagnosticsLevel_IsValid(options.level())) {
    return InvalidField(field + ".level",
                        absl::StrCat("unknown level ", static_cast<int>(options.level()),
                                     "; one of OFF, SUMMARY, INSTANCES"));
  }
  const absl::Status stride = CheckNotNegative(options.stride(), field + ".stride");
  if (!stride.ok()) return stride;
  return CheckRange(options.arithmetic_instances(), limits.max_arithmetic_instances,
                    field + ".arithmetic_instances");
}

absl::Status CheckDetail(v1::ProgramDetail detail, const std::string& field) {
  if (v1::ProgramDetail_IsValid(detail)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("unknown value ", static_cast<int>(detail),
                                          "; one of FINGERPRINT, TEXT"));
}

// An override that overrides nothing was meant to.
template <class Overrides>
absl::Status CheckSettings(const Overrides& overrides, const std::string& field) {
  for (int i = 0; i < overrides.size(); ++i) {
    const v1::RoleSetting& setting = overrides[i].setting();
    if (!setting.format().empty() || !setting.overflow().empty() || !setting.order().empty() ||
        !setting.accumulator().empty() || !setting.rounding().empty() ||
        !setting.products().empty() || !setting.scale().empty()) {
      continue;
    }
    return InvalidField(
        absl::StrCat(field, "[", i, "].setting"),
        "sets nothing; set format, overflow, order, accumulator, rounding, products or scale");
  }
  return absl::OkStatus();
}

// The place of the first id that stood before; -1: they are distinct.
int FirstTwin(const google::protobuf::RepeatedField<uint64_t>& ids, sim::WorkMeter& meter) {
  // They mostly ascend.
  const auto not_less = [](uint64_t a, uint64_t b) { return a >= b; };
  if (std::adjacent_find(ids.begin(), ids.end(), not_less) == ids.end()) return -1;
  std::vector<int> places(static_cast<size_t>(ids.size()));
  std::iota(places.begin(), places.end(), 0);
  sim::SortInPieces(meter, places.begin(), places.end(),
                    [&](int a, int b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  int first = -1;
  for (size_t i = 1; i < places.size(); ++i) {
    const bool is_twin = ids[places[i - 1]] == ids[places[i]];
    if (is_twin && (first < 0 || places[i] < first)) first = places[i];
  }
  return first;
}

absl::Status CheckIds(const v1::RolloutSpec& spec, const RequestLimits& limits,
                      const std::string& field, sim::WorkMeter& meter) {
  if (spec.instance_ids_size() > limits.max_instances) {
    return LimitExceeded(field + ".instance_ids",
                         absl::StrCat(spec.instance_ids_size(), " is above this server's limit of ",
                                      limits.max_instances, " instances"));
  }
  if (spec.instance_ids_size() > 0 && spec.first_instance() != 0) {
    return InvalidField(field + ".first_instance",
                        absl::StrCat("is ", spec.first_instance(),
                                     " beside instance_ids, which name every instance already; "
                                     "send one of the two"));
  }
  const int twin = FirstTwin(spec.instance_ids(), meter);
  if (twin < 0) return absl::OkStatus();
  return InvalidField(absl::StrCat(field, ".instance_ids[", twin, "]"),
                      absl::StrCat("instance id ", spec.instance_ids(twin),
                                   " stands twice; ids are distinct in a request"));
}

}  // namespace

absl::Status CheckWorld(const v1::World& world, const std::string& field) {
  if (world.source_case() == v1::World::SOURCE_NOT_SET) {
    return InvalidField(
        field, "names no world; set `name` to a built-in one, or `program` or `program_ref`");
  }
  if (world.source_case() != v1::World::kName && world.config_size() > 0) {
    return InvalidField(
        field + ".config",
        "a program carries its configuration itself; config is for built-in worlds");
  }
  for (const auto& [name, value] : world.config()) {
    const std::string path = absl::StrCat(field, ".config[", name, "]");
    if (value.value_case() == v1::ConfigValue::VALUE_NOT_SET) {
      return InvalidField(path, "has no value; set number, word or flag");
    }
    if (value.has_number() && !std::isfinite(value.number())) {
      return InvalidField(path, absl::StrCat("must be a finite number, not ", value.number()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPolicy(const v1::Policy& policy, const std::string& field) {
  if (policy.has_loss_scale() && policy.loss_scale().mode_case() == v1::LossScale::MODE_NOT_SET) {
    return InvalidField(field + ".loss_scale", "has no mode; set loss_scale.fixed or dynamic");
  }
  if (!v1::NonFinitePolicy_IsValid(policy.non_finite())) {
    return InvalidField(field + ".non_finite",
                        absl::StrCat("unknown value ", static_cast<int>(policy.non_finite()),
                                     "; one of REPORT, STOP"));
  }
  absl::Status status = CheckSettings(policy.roles(), field + ".roles");
  return status.ok() ? CheckSettings(policy.sites(), field + ".sites") : status;
}

absl::Status CheckTensors(const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors,
                          const std::string& field, sim::WorkMeter& meter) {
  constexpr int64_t kTensorWork = 128;  // in element-operations
  std::set<std::string_view> seen;
  for (int i = 0; i < tensors.size(); ++i) {
    meter.Add(kTensorWork);
    const std::string path = absl::StrCat(field, "[", i, "]");
    if (!seen.insert(tensors[i].name()).second) {
      return InvalidField(path + ".name",
                          absl::StrCat("'", tensors[i].name(), "' is sent twice; send it once"));
    }
    if (absl::Status status = CheckTensor(tensors[i].tensor(), path + ".tensor"); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRolloutMessage(const v1::RolloutRequest& request) {
  if (request.weights_size() > 0 && request.spec().objective().empty()) {
    return InvalidField("weights",
                        "weigh the values of spec.objective; name one, or leave them out");
  }
  if (request.spec().checkpoint_interval() == 0 || request.has_keep()) return absl::OkStatus();
  return InvalidField(
      "spec.checkpoint_interval",
      "a rollout has no checkpoints unless it is kept; leave it out, or ask for a gradient");
}

absl::Status CheckSpec(const v1::RolloutSpec& spec, const RequestLimits& limits,
                       const std::string& field, sim::WorkMeter& meter) {
  for (const absl::Status& status : {
           CheckWorld(spec.world(), field + ".world"),
           CheckRange(spec.steps(), limits.max_steps, field + ".steps"),
           CheckRange(spec.instances(), limits.max_instances, field + ".instances"),
           CheckPolicy(spec.policy(), field + ".policy"),
           CheckDiagnostics(spec.diagnostics(), limits, field + ".diagnostics"),
           CheckDetail(spec.program(), field + ".program"),
           CheckNotNegative(spec.chunk_steps(), field + ".chunk_steps"),
           CheckNotNegative(spec.checkpoint_interval(), field + ".checkpoint_interval"),
           CheckIds(spec, limits, field, meter),
           CheckTensors(spec.initial(), field + ".initial", meter),
           CheckTensors(spec.params(), field + ".params", meter),
           CheckTensors(spec.controls(), field + ".controls", meter),
           CheckTensors(spec.data(), field + ".data", meter),
           CheckPath(spec.path(), field + ".path"),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace simgrad::server::validation
