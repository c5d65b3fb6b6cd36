// The limits of what a port of gRPC takes from strangers: connections, handshakes, memory, pings, and
// calls of services that were not asked for.
//
// Threads: any.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/config/server_config.h"
#include "server/service/connections.h"

namespace simgrad::server::service {

// Connections of the service's port. `descriptors`: those that this process may have.
ConnectionLimits ConnectionLimitsOf(const config::ServerConfig& config, int64_t descriptors);
// Connections of the port for health checks: a small share of the service's.
ConnectionLimits HealthConnectionLimitsOf(const config::ServerConfig& config, int64_t descriptors);

// Sets the limits of what every port of ours takes from strangers. gRPC itself may hold
// `quota_bytes` for them.
void Harden(grpc::ServerBuilder& builder, const config::ServerConfig& config, int64_t quota_bytes);

// gRPC adds reflection and channelz to every server of a process that links them; this keeps only
// those plugins that are named.
void KeepPlugins(grpc::ServerBuilder& builder, std::vector<std::string> names);

}  // namespace simgrad::server::service
