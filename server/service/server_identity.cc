#include "server/service/server_identity.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/version.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "sim/worlds/worlds.h"

namespace simgrad::server::service {

std::string ReplicaOf(const config::ServerConfig& config) {
  if (!config.replica.empty()) return config.replica;
  std::array<char, 256> name{};
  const bool has_name = gethostname(name.data(), name.size() - 1) == 0;
  return has_name ? name.data() : "simgrad";
}

std::vector<metrics::WorldLabels> WorldLabelsOf() {
  std::vector<metrics::WorldLabels> labels;
  for (const sim::WorldSchema& world : sim::BuiltInWorlds()) {
    labels.push_back({world.name, world.termination_sites, world.event_sites});
  }
  labels.push_back({"custom", {"custom"}, {"custom"}});
  return labels;
}

metrics::ServerLabels LabelsOf(const Device& device, const std::vector<std::string>& callers) {
  metrics::ServerLabels labels = {config::kVersion, config::kRevision, device.kind, device.name};
  if (sim::cuda::IsCudaBuilt()) labels.cuda = sim::cuda::CudaBuildVersion();
  for (const Gpu& gpu : device.gpus) {
    labels.gpus.push_back({absl::StrCat(gpu.index), gpu.uuid, gpu.name});
  }
  labels.callers = callers;
  return labels;
}

tracing::ExportSettings ExportSettingsOf(const config::ServerConfig& config) {
  tracing::ExportSettings settings;
  const std::pair<const char*, std::string> attributes[] = {
      {"service.name", "simgrad"},
      {"service.version", config::kVersion},
      {"service.instance.id", ReplicaOf(config)}};
  for (const auto& [key, text] : attributes) {
    tracing::Attribute* const attribute = settings.resource.add_attributes();
    attribute->set_key(key);
    attribute->mutable_value()->set_text(text);
  }
  settings.scope.set_name("simgrad-server");
  settings.scope.set_version(config::kVersion);
  return settings;
}

}  // namespace simgrad::server::service
