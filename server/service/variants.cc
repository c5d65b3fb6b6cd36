#include "server/service/variants.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/conversion/world.h"
#include "server/service/work_size.h"
#include "server/validation/request_error.h"
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

// While it lives, the spec is that of the variant: what the variant gives has changed places with what the
// spec has, so that nothing is copied.
class Exchanged {
 public:
  Exchanged(v1::RolloutSpec& spec, v1::Variant& variant) : spec_(spec), variant_(variant) {
    Exchange();
    for (size_t g = 0; g < kGroups.size(); ++g) {
      NamedTensors& sent = *(spec.*kGroups[g].of_spec)();
      known_[g] = sent.size();
      for (v1::NamedTensor& tensor : *(variant.*kGroups[g].of_variant)()) {
        places_[g].push_back(PlaceOf(sent, tensor.name(), known_[g]));
        sent[places_[g].back()].Swap(&tensor);
      }
    }
  }
  ~Exchanged() {
    for (size_t g = 0; g < kGroups.size(); ++g) {
      NamedTensors& sent = *(spec_.*kGroups[g].of_spec)();
      NamedTensors& own = *(variant_.*kGroups[g].of_variant)();
      // The last first, as a name that stands twice was exchanged twice.
      for (int i = own.size(); i-- > 0;) sent[places_[g][static_cast<size_t>(i)]].Swap(&own[i]);
      while (sent.size() > known_[g]) sent.RemoveLast();
    }
    Exchange();
  }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  // An input of the spec itself, else a new one behind them: a name that a variant sends twice stands
  // twice, and is refused.
  static int PlaceOf(NamedTensors& sent, const std::string& name, int known) {
    for (int i = 0; i < known; ++i) {
      if (sent[i].name() == name) return i;
    }
    sent.Add();
    return sent.size() - 1;
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
  std::array<int, kGroups.size()> known_{};
  std::array<std::vector<int>, kGroups.size()> places_;
};

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

// Numbers of one run at a time take memory, beside those of the reference.
class OneAtATime {
 public:
  explicit OneAtATime(const PrepareControl& all) : all_(all) {}
  PrepareControl Next() {
    now_ = 0;
    PrepareControl control = all_;
    if (!all_.take_numbers) return control;
    control.take_numbers = [this](int64_t bytes) {
      now_ += bytes;
      if (now_ <= most_) return true;
      if (!all_.take_numbers(now_ - most_)) return false;
      most_ = now_;
      return true;
    };
    return control;
  }

 private:
  const PrepareControl& all_;
  int64_t now_ = 0;
  int64_t most_ = 0;
};

bool StandsIn(std::string_view field, std::string_view part) {
  return field.starts_with(part) &&
         (field.size() == part.size() || field[part.size()] == '.' || field[part.size()] == '[');
}

}  // namespace

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
    const Exchanged exchanged(spec(), *request_.mutable_variants(variant));
    prepared = PrepareWork(control);
  }
  if (!prepared.ok()) return Of(variant, prepared.status());
  return prepared;
}

std::string Variants::LabelOf(int variant) const {
  const v1::Variant& own = request_.variants(variant);
  return conversion::WorldLabel(own.has_world() ? own.world() : spec().world());
}

absl::Status Variants::Of(int variant, const absl::Status& status) const {
  const v1::Variant& own = request_.variants(variant);
  const std::string name = absl::StrCat("variants[", variant, "]");
  const std::string field = sim::FieldOf(status);
  std::string message(status.message());
  if (!field.empty() && message.starts_with(field + ": ")) message.erase(0, field.size() + 2);
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
  return about(field.empty() ? name : field,
               field.empty() ? message : absl::StrCat("in ", name, ": ", message));
}

absl::Status Variants::PrepareAll(PreparedWork& reference, const PrepareControl& control) {
  OneAtATime numbers(control);
  const int64_t instances = reference.work.batch.instances;
  const auto add = [&](const PreparedWork& run) {
    instance_steps_ += static_cast<double>(instances) * static_cast<double>(run.work.batch.steps);
    work_at_caps_ += WorkAtCaps(run);
    reference.memory_bytes = std::max(reference.memory_bytes, run.memory_bytes);
  };
  add(reference);
  for (int i = 0; i < count(); ++i) {
    const auto run = Prepare(i, numbers.Next());
    if (!run.ok()) return run.status();
    if (run->work.batch.instances != instances) {
      return InvalidField(
          absl::StrCat("variants[", i, "]"),
          absl::StrCat("is of ", run->work.batch.instances, " instances, the work as it stands of ",
                       instances, "; instances are compared one by one"));
    }
    add(*run);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedWork> Variants::Begin(std::shared_ptr<Variants> variants,
                                             const PrepareControl& control) {
  if (absl::Status status = variants->Check(); !status.ok()) return status;
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
  if (absl::Status status = variants->PrepareAll(*reference, control); !status.ok()) return status;
  reference->memory_bytes += path + KeptBytes(*reference);
  reference->variants = std::move(variants);
  return reference;
}

}  // namespace simgrad::server::service
