// The names of this server: in its metrics, in spans and in the handles of kept rollouts.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "server/config/server_config.h"
#include "server/metrics/manifest.h"
#include "server/metrics/series.h"
#include "server/service/device.h"
#include "server/tracing/span_exporter.h"

namespace simgrad::server::service {

// The name of this replica: config.replica, or else that of the machine.
std::string ReplicaOf(const config::ServerConfig& config);

// The built-in worlds with their sites, and "custom".
std::vector<metrics::WorldLabels> WorldLabelsOf();

// `callers`: those that the operator wrote down.
metrics::ServerLabels LabelsOf(const Device& device, const std::vector<std::string>& callers);

// The process that spans are of. Source: OpenTelemetry semantic conventions, services.
tracing::ExportSettings ExportSettingsOf(const config::ServerConfig& config);

}  // namespace simgrad::server::service
