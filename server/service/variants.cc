#include "server/service/variants.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/conversion/world.h"
#include "server/service/work_size.h"
#include "server/validation/request_error.h"
#include "server/validation/spec_check.h"
#include "sim/program/field_error.h"
#include "sim/program/paths.h"

namespace simgrad::server::service {
namespace {

using NamedTensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;
using validation::InvalidField;

struct Group {
  const char* name;
  NamedTensors* (v1::RolloutSpec::*of_spec)();
  NamedTensors* (v1::Variant::*of_variant)();
};
constexpr std::array<Group, 4> kGroups = {{
    {"initial", &v1::RolloutSpec::mutable_initial, &v1::Variant::mutable_initial},
    {"params", &v1::RolloutSpec::mutable_params, &v1::Variant::mutable_params},
    {"controls", &v1::RolloutSpec::mutable_controls, &v1::Variant::mutable_controls},
    {"data", &v1::RolloutSpec::mutable_data, &v1::Variant::mutable_data},
}};

// Bytes of a path, at least: those that are counted saturate far above any budget.
int64_t PathBytes(const PreparedWork& reference) {
  const auto& path = reference.program->program->path;
  if (!path) return 0;
  const sim::Batch& batch = reference.work.batch;
  const double bytes = static_cast<double>(path->bytes) * static_cast<double>(batch.instances) *
                       static_cast<double>(batch.steps);
  return static_cast<int64_t>(std::min(bytes, 1e15));
}

// Bytes of what is kept of the reference's answer, and of what a comparison tells of each instance.
int64_t KeptBytes(const PreparedWork& reference) {
  constexpr int64_t kNumber = 8;
  constexpr int64_t kOfInstance =
      128;  // value, signature, first difference, as data and as messages
  const sim::Batch& batch = reference.work.batch;
  const sim::Program& program = batch.program->program;
  int64_t bytes = kOfInstance * batch.instances;
  for (const int32_t state : program.InputsOf(sim::InputKind::kState)) {
    const sim::ValueId value = program.inputs[static_cast<size_t>(state)].value;
    bytes += kNumber * batch.instances * sim::ElementCount(program[value].type.shape);
  }
  if (!reference.work.gradient) return bytes;
  for (const sim::Binding& binding : batch.inputs) bytes += kNumber * binding.tensor.count();
  return bytes;
}

// Bytes of the inputs of a work.
int64_t InputBytes(const sim::Batch& batch) {
  int64_t bytes = 0;
  for (const sim::Binding& binding : batch.inputs) {
    bytes += static_cast<int64_t>(binding.tensor.bytes.size());
  }
  return bytes;
}

bool StandsIn(std::string_view field, std::string_view part) {
  return field.starts_with(part) &&
         (field.size() == part.size() || field[part.size()] == '.' || field[part.size()] == '[');
}

}  // namespace

// While it lives, the spec is that of the variant: what the variant gives has changed places with what the
// spec has, so that nothing is copied.
class Variants::Exchanged {
 public:
  Exchanged(v1::RolloutSpec& spec, v1::Variant& variant, const Places& places)
      : spec_(spec), variant_(variant), places_(places) {
    Exchange();
    for (size_t g = 0; g < kGroups.size(); ++g) {
      NamedTensors& sent = *(spec.*kGroups[g].of_spec)();
      known_[g] = sent.size();
      for (const int place : places[g]) {
        while (sent.size() <= place) sent.Add();
      }
      ExchangeInputs(g);
    }
  }
  ~Exchanged() {
    for (size_t g = 0; g < kGroups.size(); ++g) {
      ExchangeInputs(g);
      NamedTensors& sent = *(spec_.*kGroups[g].of_spec)();
      while (sent.size() > known_[g]) sent.RemoveLast();
    }
    Exchange();
  }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  void ExchangeInputs(size_t group) {
    NamedTensors& sent = *(spec_.*kGroups[group].of_spec)();
    NamedTensors& own = *(variant_.*kGroups[group].of_variant)();
    for (int i = 0; i < own.size(); ++i) {
      sent[places_[group][static_cast<size_t>(i)]].Swap(&own[i]);
    }
  }

  void Exchange() {
    if (variant_.has_policy()) spec_.mutable_policy()->Swap(variant_.mutable_policy());
    if (variant_.has_world()) spec_.mutable_world()->Swap(variant_.mutable_world());
    if (variant_.has_steps()) {
      const int64_t steps = spec_.steps();
      spec_.set_steps(variant_.steps());
      variant_.set_steps(steps);
    }
    if (variant_.has_seed()) {
      const uint64_t seed = spec_.seed();
      spec_.set_seed(variant_.seed());
      variant_.set_seed(seed);
    }
  }

  v1::RolloutSpec& spec_;
  v1::Variant& variant_;
  const Places& places_;
  std::array<int, kGroups.size()> known_{};
};

Variants::Variants(v1::CompareRequest request, conversion::ProgramCache& cache,
                   PrepareOptions options)
    : request_(std::move(request)), cache_(cache), options_(std::move(options)) {}

v1::RolloutSpec& Variants::spec() {
  return request_.has_gradient() ? *request_.mutable_gradient()->mutable_spec()
                                 : *request_.mutable_rollout()->mutable_spec();
}

const v1::RolloutSpec& Variants::spec() const {
  return request_.has_gradient() ? request_.gradient().spec() : request_.rollout().spec();
}

absl::Status Variants::Check() const {
  if (request_.work_case() == v1::CompareRequest::WORK_NOT_SET) {
    return InvalidField("work", "names no work; set `rollout` or `gradient`");
  }
  if (request_.variants_size() == 0) {
    return InvalidField("variants",
                        "there is none; send at least one, to be compared with the work "
                        "as it stands");
  }
  if (request_.variants_size() > kMostVariants) {
    return validation::LimitExceeded(
        "variants", absl::StrCat(request_.variants_size(), " are above this server's limit of ",
                                 kMostVariants, "; compare them in several calls"));
  }
  if (request_.has_rollout() && request_.rollout().has_keep()) {
    return InvalidField("keep", "runs that are compared are not kept; leave it out");
  }
  if (spec().path().has_forced()) {
    return InvalidField("spec.path.forced",
                        "runs that are compared take their own paths; leave it out");
  }
  if (request_.without_paths() && spec().path().record()) {
    return InvalidField("without_paths", "stands beside spec.path.record; send one of the two");
  }
  return absl::OkStatus();
}

absl::Status Variants::Place(sim::WorkMeter& meter) {
  constexpr int64_t kNameWork = 128;  // of finding a name, in element-operations
  places_.resize(static_cast<size_t>(count()));
  for (size_t g = 0; g < kGroups.size(); ++g) {
    const NamedTensors& sent = *(spec().*kGroups[g].of_spec)();
    std::unordered_map<std::string_view, int> known;
    for (int i = 0; i < sent.size(); ++i) {
      meter.Add(kNameWork);
      known.try_emplace(sent[i].name(), i);
    }
    for (int v = 0; v < count(); ++v) {
      const NamedTensors& own = *(request_.mutable_variants(v)->*kGroups[g].of_variant)();
      const std::string field = absl::StrCat("variants[", v, "].", kGroups[g].name);
      absl::Status status = validation::CheckTensors(own, field, meter);
      if (!status.ok()) return status;
      int behind = sent.size();
      for (const v1::NamedTensor& tensor : own) {
        meter.Add(kNameWork);
        const auto found = known.find(tensor.name());
        places_[static_cast<size_t>(v)][g].push_back(found == known.end() ? behind++
                                                                          : found->second);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedWork> Variants::PrepareWork(const PrepareControl& control) {
  auto prepared = request_.has_gradient()
                      ? service::Prepare(request_.gradient(), cache_, options_, control)
                      : service::Prepare(request_.rollout(), cache_, options_, control);
  if (!prepared.ok() || sends_path_) return prepared;
  for (conversion::Recorded& field : prepared->recorded) {
    if (field.name == sim::kPathTaken) field.is_sent = false;
  }
  return prepared;
}

absl::StatusOr<PreparedWork> Variants::Prepare(int variant, const PrepareControl& control) {
  absl::StatusOr<PreparedWork> prepared = absl::InternalError("nothing was prepared");
  {
    v1::Variant& own = *request_.mutable_variants(variant);
    const Exchanged exchanged(spec(), own, places_[static_cast<size_t>(variant)]);
    prepared = PrepareWork(control);
  }
  if (!prepared.ok()) return Of(variant, prepared.status());
  return prepared;
}

std::string Variants::LabelOf(int variant) const {
  const v1::Variant& own = request_.variants(variant);
  return conversion::WorldLabel(own.has_world() ? own.world() : spec().world());
}

std::string Variants::Named(int variant, const std::string& text) const {
  constexpr std::string_view kSpec = "spec.";
  std::string named;
  std::string_view rest = text;
  for (size_t at; (at = rest.find(kSpec)) != std::string_view::npos;) {
    named.append(rest.substr(0, at));
    rest.remove_prefix(at);
    bool is_own = false;
    for (size_t g = 0; g < kGroups.size() && !is_own; ++g) {
      const std::string head = absl::StrCat("spec.", kGroups[g].name, "[");
      const size_t end = rest.find(']');
      int place = -1;
      if (!rest.starts_with(head) || end == std::string_view::npos ||
          !absl::SimpleAtoi(std::string(rest.substr(head.size(), end - head.size())), &place)) {
        continue;
      }
      const std::vector<int>& places = places_[static_cast<size_t>(variant)][g];
      const auto found = std::find(places.begin(), places.end(), place);
      if (found == places.end()) continue;
      absl::StrAppend(&named, "variants[", variant, "].", kGroups[g].name, "[",
                      found - places.begin(), "]");
      rest.remove_prefix(end + 1);
      is_own = true;
    }
    if (is_own) continue;
    named.append(kSpec);
    rest.remove_prefix(kSpec.size());
  }
  return named.append(rest);
}

absl::Status Variants::Of(int variant, const absl::Status& status) const {
  const v1::Variant& own = request_.variants(variant);
  const std::string name = absl::StrCat("variants[", variant, "]");
  const std::string field = sim::FieldOf(status);
  std::string message(status.message());
  if (!field.empty() && message.starts_with(field + ": ")) message.erase(0, field.size() + 2);
  message = Named(variant, message);
  const auto about = [&](const std::string& path, const std::string& text) {
    absl::Status made = sim::InField(path, absl::Status(status.code(), text));
    const std::string reason = validation::ReasonOf(status);
    return reason.empty() ? made : validation::WithReason(made, reason);
  };
  const std::pair<const char*, bool> given[] = {{"spec.policy", own.has_policy()},
                                                {"spec.world", own.has_world()},
                                                {"spec.steps", own.has_steps()},
                                                {"spec.seed", own.has_seed()}};
  constexpr std::string_view kSpec = "spec";
  for (const auto& [part, is_given] : given) {
    if (is_given && StandsIn(field, part)) return about(name + field.substr(kSpec.size()), message);
  }
  const std::string named = Named(variant, field);
  if (named != field) return about(named, message);
  return about(field.empty() ? name : field,
               field.empty() ? message : absl::StrCat("in ", name, ": ", message));
}

absl::Status Variants::PrepareAll(PreparedWork& reference, const PrepareControl& control) {
  const int64_t instances = reference.work.batch.instances;
  const auto add = [&](const PreparedWork& run) {
    instance_steps_ += static_cast<double>(instances) * static_cast<double>(run.work.batch.steps);
    work_at_caps_ += WorkAtCaps(run);
    reference.memory_bytes = std::max(reference.memory_bytes, run.memory_bytes);
  };
  add(reference);
  // The inputs of one variant at a time, beside those of the reference.
  const int64_t numbers = InputBytes(reference.work.batch);
  if (control.take_numbers && !control.take_numbers(numbers)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no memory for the ", numbers,
                     " bytes of a second run's inputs; try later, or ask for less"));
  }
  for (int i = 0; i < count(); ++i) {
    const auto run = Prepare(i, control);
    if (!run.ok()) return run.status();
    if (run->work.batch.instances != instances) {
      return InvalidField(
          absl::StrCat("variants[", i, "]"),
          absl::StrCat("is of ", run->work.batch.instances, " instances, the work as it stands of ",
                       instances, "; instances are compared one by one"));
    }
    add(*run);
    reference.decode_seconds += run->decode_seconds;
    reference.compile_seconds += run->compile_seconds;
    reference.decode.last = std::max(reference.decode.last, run->decode.last);
    reference.compile.last = std::max(reference.compile.last, run->compile.last);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedWork> Variants::Begin(std::shared_ptr<Variants> variants,
                                             const PrepareControl& control) {
  absl::Status status = variants->Check();
  if (!status.ok()) return status;
  sim::WorkMeter meter(control.compile.stop);
  const absl::Status ended = sim::UntilStopped([&] { status = variants->Place(meter); });
  if (!ended.ok() || !status.ok()) return ended.ok() ? status : ended;
  v1::RolloutSpec& spec = variants->spec();
  variants->sends_path_ = spec.path().record();
  if (!variants->request_.without_paths()) spec.mutable_path()->set_record(true);
  auto reference = variants->PrepareWork(control);
  if (!reference.ok()) return reference;
  const int64_t path = PathBytes(*reference);
  // Together with the work itself.
  const int64_t most = variants->options_.work.memory_budget_bytes / 2;
  if (path > most) {
    return validation::LimitExceeded("spec.path.record",
                                     absl::StrCat("the path of the reference takes ", path,
                                                  " bytes, which are held while the "
                                                  "others run; the limit is ",
                                                  most, "; send `without_paths`"));
  }
  status = variants->PrepareAll(*reference, control);
  if (!status.ok()) return status;
  reference->memory_bytes += path + KeptBytes(*reference);
  reference->variants = std::move(variants);
  return reference;
}

}  // namespace simgrad::server::service
