#include "server/service/server_info.h"

#include <algorithm>
#include <string>

#include "absl/time/time.h"
#include "precision/policy.h"
#include "server/config/version.h"
#include "server/conversion/program_limits.h"
#include "server/service/contents.h"
#include "server/service/memory_shares.h"
#include "server/service/variants.h"
#include "server/validation/request_limits.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::service {
namespace {

void SetDevice(const Device& device, v1::DeviceInfo& info) {
  info.set_kind(device.kind);
  info.set_name(device.name);
  info.set_threads(device.threads);
  info.set_instruction_set(device.instruction_set);
  for (const auto& [format, execution] : device.formats) {
    (*info.mutable_formats())[format] = execution;
  }
  info.set_memory_bytes(device.memory_bytes);
  info.set_note(device.note);
}

void SetLimits(const config::ServerConfig& config, int64_t memory_limit_bytes, v1::Limits& limits) {
  limits.set_max_steps(config.max_steps);
  limits.set_max_instances(config.max_instances);
  conversion::SetProgramLimits(limits);
  limits.set_max_path_bytes(validation::RequestLimits().max_path_bytes);
  limits.set_max_message_bytes(config.max_message_bytes);
  limits.set_max_request_bytes(config.max_request_bytes);
  limits.set_max_request_memory_bytes(memory_limit_bytes);
  limits.set_max_kept_bytes(KeptBytesOf(config, memory_limit_bytes));
  limits.set_kept_run_seconds(absl::ToDoubleSeconds(config.kept_run_ttl));
  const int64_t contents = ContentBytesOf(config, memory_limit_bytes);
  limits.set_max_upload_bytes(
      std::min(config.max_request_bytes, contents - Contents::kBesideContent));
  limits.set_max_uploaded_bytes(contents);
  limits.set_uploaded_seconds(absl::ToDoubleSeconds(config.content_ttl));
  limits.set_max_variants(kMostVariants);
  limits.set_max_arithmetic_instances(validation::RequestLimits().max_arithmetic_instances);
}

}  // namespace

v1::ServerInfo ServerInfoOf(const config::ServerConfig& config, const Device& device,
                            int64_t memory_limit_bytes) {
  v1::ServerInfo info;
  info.set_version(config::kVersion);
  info.set_revision(config::kRevision);
  SetDevice(device, *info.add_devices());
  SetLimits(config, memory_limit_bytes, *info.mutable_limits());
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) info.add_worlds(world.name);
  for (const std::string& preset : precision::PresetNames()) info.add_presets(preset);
  for (const std::string& order : precision::SumOrderNames()) info.add_orders(order);
  info.set_default_device(device.kind);
  return info;
}

}  // namespace simgrad::server::service
