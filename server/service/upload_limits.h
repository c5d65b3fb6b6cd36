// How much requests may hold while they come: the server's own limit, and gRPC's behind it.
#pragma once

#include <cstdint>

#include "server/config/server_config.h"
#include "server/service/uploads.h"

namespace simgrad::server::service {

UploadLimits UploadLimitsOf(const config::ServerConfig& config, int64_t memory_limit_bytes);

// The most memory that gRPC itself may hold: messages that have not come completely or that wait
// for their call, calls, and connections. Beyond it gRPC cancels calls of any caller, so this limit
// stands behind ours.
int64_t GrpcMemoryOf(const config::ServerConfig& config, int64_t memory_limit_bytes);

}  // namespace simgrad::server::service
