#include "server/conversion/program_cache.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/conversion/loss_scaler.h"
#include "server/conversion/path.h"
#include "server/conversion/policy.h"
#include "server/conversion/program_info.h"
#include "server/conversion/schema.h"
#include "server/conversion/world.h"
#include "server/validation/request_error.h"
#include "sim/program/draws.h"
#include "sim/program/field_error.h"
#include "sim/program/held_bytes.h"
#include "sim/program/print.h"
#include "sim/program/step_work.h"

namespace simgrad::server::conversion {
namespace {

// The whole of a world, with its adjoint, is above a limit: that is no field of a request.
bool IsTooLarge(const absl::Status& status) {
  return sim::IsLimit(status) && sim::FieldOf(status) == "program";
}

// The status about the field that makes the program: of a spec or a description their world.
absl::Status AboutWorldOf(const std::string& field, const absl::Status& status) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "program: ");
  const std::string about = field.empty() ? "world" : field == "spec" ? "spec.world" : field;
  return sim::LimitError(about, std::string(message));
}

// Maps serialise in a fixed order, so that equal messages are equal bytes.
std::string BytesOf(const google::protobuf::Message& message) {
  std::string key;
  {
    google::protobuf::io::StringOutputStream stream(&key);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return key;
}

void AppendFlags(const std::vector<bool>& flags, std::string& key) {
  key.push_back('|');
  for (bool flag : flags) key.push_back(flag ? '1' : '0');
}

// A program depends on the number of a dynamic loss scale alone: its count of clean gradients is another
// one in each request.
std::string PolicyKey(const v1::Policy& policy) {
  if (!policy.loss_scale().has_dynamic()) return BytesOf(policy);
  v1::Policy part = policy;
  v1::DynamicLossScale* const scaler = part.mutable_loss_scale()->mutable_dynamic();
  scaler->Clear();
  scaler->set_scale(ScaleOf(policy.loss_scale().dynamic()));
  return BytesOf(part);
}

// Lengths in front keep the parts apart.
std::string ProgramKey(const CachedWorld& world, const v1::Policy& policy,
                       const std::string& objective, const std::optional<sim::AdjointSpec>& adjoint,
                       const sim::LowerOptions& options) {
  const std::string policy_key = PolicyKey(policy);
  std::string key =
      absl::StrCat(world.key.size(), ",", policy_key.size(), ",", objective.size(), ",",
                   static_cast<int>(options.path), ",", world.key, policy_key, objective);
  for (const std::string& site : options.margins)
    absl::StrAppend(&key, "|", site.size(), ":", site);
  if (!adjoint) return key;
  absl::StrAppend(&key, "|", adjoint->objective);
  AppendFlags(adjoint->final_state, key);
  AppendFlags(adjoint->trajectory_state, key);
  AppendFlags(adjoint->trajectory_export, key);
  AppendFlags(adjoint->wanted, key);
  for (const sim::LoopChoice& loop : adjoint->loops) {
    absl::StrAppend(&key, "|", loop.site.size(), ":", loop.site, static_cast<int>(loop.how), ",",
                    loop.last, ",", static_cast<int>(loop.solver), ",", loop.max_iter, ",",
                    loop.restart, ",", absl::Hex(std::bit_cast<uint64_t>(loop.tol)), ",",
                    absl::Hex(std::bit_cast<uint64_t>(loop.damping)));
  }
  return key;
}

double StepWorkOf(const sim::Program& program) {
  double work = sim::WorkAtCaps(program, program.step) + sim::WorkAtCaps(program, program.initial);
  for (const sim::Objective& objective : program.objectives) {
    work += sim::WorkAtCaps(program, objective.stage);
    work += sim::WorkAtCaps(program, objective.terminal);
  }
  return work;
}

std::vector<validation::FieldSchema> RequiredOf(const sim::Program& program) {
  const validation::ProgramSchema schema = SchemaOf(program);
  std::vector<validation::FieldSchema> required;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const sim::Input& input = program.inputs[i];
    const bool sendable =
        input.kind != sim::InputKind::kConfig && input.kind != sim::InputKind::kStep;
    // The service fills these itself.
    const bool is_own = input.name == sim::kRandomKey || IsOfPath(input.name);
    if (sendable && input.used && !input.default_value && !is_own)
      required.push_back(schema.inputs[i]);
  }
  return required;
}

}  // namespace

ProgramCache::ProgramCache(ProgramCacheOptions options, std::function<void(Lookup)> on_lookup)
    : options_(std::move(options)),
      worlds_(options_.max_entries, options_.max_bytes / 4),
      programs_(options_.max_entries, options_.max_bytes - options_.max_bytes / 4),
      on_lookup_(std::move(on_lookup)) {}

// Returns the one object of its key: that of another call which missed it at the same time, where
// there is one. The lease goes with the value: work may hold it longer than the cache does.
template <class Value>
std::shared_ptr<const Value> ProgramCache::Keep(const std::string& key,
                                                std::shared_ptr<Value> value, int64_t bytes,
                                                MeasuredLru<Value>& entries) {
  if (!entries.Takes(bytes)) return value;
  {
    std::lock_guard lock(mutex_);
    if (auto found = entries.Find(key)) return found;
  }
  if (options_.lease) {
    value->memory = options_.lease(bytes);
    if (value->memory == nullptr) return value;
  }
  std::lock_guard lock(mutex_);
  if (auto found = entries.Find(key)) return found;
  entries.Insert(key, value, bytes);
  return value;
}

int64_t ProgramCache::Relieve(int64_t bytes) {
  std::lock_guard lock(mutex_);
  int64_t freed = 0;
  while (freed < bytes) {
    const int64_t more = programs_.DropOldestIdle() + worlds_.DropOldestIdle();
    if (more == 0) break;
    freed += more;
  }
  return freed;
}

ProgramCache::Use ProgramCache::worlds() const {
  std::lock_guard lock(mutex_);
  return {worlds_.bytes(), worlds_.size()};
}

ProgramCache::Use ProgramCache::programs() const {
  std::lock_guard lock(mutex_);
  return {programs_.bytes(), programs_.size()};
}

std::shared_ptr<const CachedWorld> ProgramCache::OfContent(const std::string& sha256) const {
  std::lock_guard lock(mutex_);
  const auto found = of_contents_.find(sha256);
  return found == of_contents_.end() ? nullptr : found->second.lock();
}

void ProgramCache::SetOfContent(const std::string& sha256,
                                const std::shared_ptr<const CachedWorld>& world) {
  const auto most = static_cast<size_t>(2 * options_.max_entries);
  std::lock_guard lock(mutex_);
  if (of_contents_.size() >= most) {
    std::erase_if(of_contents_, [](const auto& entry) { return entry.second.expired(); });
  }
  if (of_contents_.size() >= most) of_contents_.clear();
  of_contents_[sha256] = world;
}

absl::StatusOr<std::shared_ptr<const CachedWorld>> ProgramCache::World(
    const v1::World& world, const std::string& field, const CompileControl& control,
    const NamedWorlds& named) {
  if (world.source_case() == v1::World::kProgramRef) {
    const auto found = named.find(world.program_ref());
    if (found != named.end()) return found->second;
    return validation::NotSupported(field + ".program_ref",
                                    "no uploaded content is taken here; send it inline");
  }
  std::string key;
  // Only looks at the clock: a world that is found takes no memory.
  sim::PassBudget looks(control.stop);
  const absl::Status ended =
      sim::WithinBudget([&] { key = sim::Fingerprint(BytesOf(world), &looks); });
  if (!ended.ok()) return ended;
  {
    std::lock_guard lock(mutex_);
    if (auto found = worlds_.Find(key)) return found;
  }
  Compilation compilation(control);
  auto program = WorldFromProto(world, field, compilation);
  if (!program.ok()) {
    on_lookup_(Lookup::kFailed);
    return program.status();
  }
  auto cached = std::make_shared<CachedWorld>();
  cached->key = key;
  cached->program = *std::move(program);
  cached->schema = SchemaOf(cached->program);
  const int64_t bytes = sim::HeldBytes(cached->program);
  return Keep(key, std::move(cached), bytes, worlds_);
}

absl::StatusOr<std::shared_ptr<const CachedProgram>> ProgramCache::Lower(
    std::shared_ptr<const CachedWorld> world, const v1::Policy& policy,
    const std::string& objective, const std::optional<sim::AdjointSpec>& adjoint,
    const std::string& field, const CompileControl& control, const sim::LowerOptions& options) {
  const std::string at = absl::StrCat(field, field.empty() ? "" : ".", "policy");
  if (policy.loss_scale().has_dynamic()) {
    const absl::Status checked =
        CheckLossScaler(policy.loss_scale().dynamic(), at + ".loss_scale.dynamic");
    if (!checked.ok()) {
      on_lookup_(Lookup::kFailed);
      return checked;
    }
  }
  const std::string key = sim::Fingerprint(ProgramKey(*world, policy, objective, adjoint, options));
  {
    std::lock_guard lock(mutex_);
    if (auto found = programs_.Find(key)) {
      on_lookup_(Lookup::kHit);
      return found;
    }
  }
  auto resolved = PolicyFromProto(policy, at);
  if (!resolved.ok()) {
    on_lookup_(Lookup::kFailed);
    return resolved.status();
  }
  Compilation compilation(control);
  auto lowered =
      sim::Lower(world->program, *resolved, objective, adjoint, compilation.budget(), options);
  if (!lowered.ok()) {
    on_lookup_(Lookup::kFailed);
    if (!absl::IsInvalidArgument(lowered.status())) {
      return compilation.StatusOf(lowered.status(), "");
    }
    // The loops of a gradient stand beside its spec, those of a kept rollout in `keep`.
    // A gradient says how loops are differentiated beside its spec, and a Vjp beside its handle.
    const bool is_of_call = field == "spec" || field == "handle";
    const bool is_beside = is_of_call && sim::FieldOf(lowered.status()).starts_with("loops");
    const absl::Status status = IsTooLarge(lowered.status())
                                    ? AboutWorldOf(field, lowered.status())
                                    : sim::InField(is_beside ? "" : field, lowered.status());
    return compilation.StatusOf(status, "INVALID_FIELD");
  }
  on_lookup_(Lookup::kMiss);
  auto cached = std::make_shared<CachedProgram>();
  cached->world = std::move(world);
  cached->program = std::make_shared<const sim::NumericalProgram>(*std::move(lowered));
  cached->required = RequiredOf(cached->program->program);
  cached->step_work = StepWorkOf(cached->program->program);
  cached->info = ProgramInfoToProto(*cached->program).SerializeAsString();
  const auto info_bytes = static_cast<int64_t>(cached->info.capacity());
  const int64_t bytes = sim::HeldBytes(*cached->program) + info_bytes;
  return Keep(key, std::move(cached), bytes, programs_);
}

}  // namespace simgrad::server::conversion
