#include "server/conversion/program_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/conversion/policy.h"
#include "server/conversion/program_info.h"
#include "server/conversion/schema.h"
#include "server/conversion/world.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"
#include "sim/program/step_work.h"

namespace simgrad::server::conversion {
namespace {

// A lowered program takes some tens of times the bytes of its message; keys of this size together
// bound the cache to some hundred MiB.
constexpr int64_t kMaxKeyBytes = int64_t{8} << 20;

// Maps serialise in a fixed order, so that equal messages have equal keys.
std::string KeyOf(const google::protobuf::Message& message) {
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

// Lengths in front keep the parts apart.
std::string ProgramKey(const CachedWorld& world, const v1::Policy& policy,
                       const std::string& objective,
                       const std::optional<sim::AdjointSpec>& adjoint) {
  const std::string policy_key = KeyOf(policy);
  std::string key = absl::StrCat(world.key.size(), ",", policy_key.size(), ",", objective.size(),
                                 ",", world.key, policy_key, objective);
  if (!adjoint) return key;
  absl::StrAppend(&key, "|", adjoint->objective);
  AppendFlags(adjoint->final_state, key);
  AppendFlags(adjoint->trajectory_state, key);
  AppendFlags(adjoint->trajectory_export, key);
  AppendFlags(adjoint->wanted, key);
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
    if (sendable && input.used && !input.default_value) required.push_back(schema.inputs[i]);
  }
  return required;
}

}  // namespace

template <class Value>
std::shared_ptr<const Value> LruMap<Value>::Find(const std::string& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->value;
}

template <class Value>
void LruMap<Value>::Insert(const std::string& key, std::shared_ptr<const Value> value) {
  if (index_.count(key) > 0 || static_cast<int64_t>(key.size()) > max_key_bytes_) return;
  entries_.push_front({key, std::move(value)});
  index_[key] = entries_.begin();
  key_bytes_ += static_cast<int64_t>(key.size());
  while (static_cast<int64_t>(entries_.size()) > max_entries_ || key_bytes_ > max_key_bytes_) {
    key_bytes_ -= static_cast<int64_t>(entries_.back().key.size());
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

template class LruMap<CachedWorld>;
template class LruMap<CachedProgram>;

ProgramCache::ProgramCache(int64_t max_entries, std::function<void(Lookup)> on_lookup)
    : worlds_(max_entries, kMaxKeyBytes),
      programs_(max_entries, kMaxKeyBytes),
      on_lookup_(std::move(on_lookup)) {}

absl::StatusOr<std::shared_ptr<const CachedWorld>> ProgramCache::World(const v1::World& world,
                                                                       const std::string& field) {
  const std::string key = KeyOf(world);
  {
    std::lock_guard lock(mutex_);
    if (auto found = worlds_.Find(key)) return found;
  }
  auto program = WorldFromProto(world, field);
  if (!program.ok()) {
    on_lookup_(Lookup::kFailed);
    return program.status();
  }
  auto cached = std::make_shared<CachedWorld>();
  cached->key = key;
  cached->program = *std::move(program);
  cached->schema = SchemaOf(cached->program);
  std::lock_guard lock(mutex_);
  worlds_.Insert(key, cached);
  return cached;
}

absl::StatusOr<std::shared_ptr<const CachedProgram>> ProgramCache::Lower(
    std::shared_ptr<const CachedWorld> world, const v1::Policy& policy,
    const std::string& objective, const std::optional<sim::AdjointSpec>& adjoint,
    const std::string& field) {
  const std::string key = ProgramKey(*world, policy, objective, adjoint);
  {
    std::lock_guard lock(mutex_);
    if (auto found = programs_.Find(key)) {
      on_lookup_(Lookup::kHit);
      return found;
    }
  }
  auto resolved = PolicyFromProto(policy, absl::StrCat(field, field.empty() ? "" : ".", "policy"));
  if (!resolved.ok()) {
    on_lookup_(Lookup::kFailed);
    return resolved.status();
  }
  auto lowered = sim::Lower(world->program, *resolved, objective, adjoint);
  if (!lowered.ok()) {
    on_lookup_(Lookup::kFailed);
    if (!absl::IsInvalidArgument(lowered.status())) return lowered.status();
    return validation::WithReason(sim::InField(field, lowered.status()), "INVALID_FIELD");
  }
  on_lookup_(Lookup::kMiss);
  auto cached = std::make_shared<CachedProgram>();
  cached->world = std::move(world);
  cached->program = std::make_shared<const sim::NumericalProgram>(*std::move(lowered));
  cached->required = RequiredOf(cached->program->program);
  cached->step_work = StepWorkOf(cached->program->program);
  cached->info = ProgramInfoToProto(*cached->program).SerializeAsString();
  std::lock_guard lock(mutex_);
  programs_.Insert(key, cached);
  return cached;
}

}  // namespace simgrad::server::conversion
