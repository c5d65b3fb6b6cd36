// The answer of GetServerInfo: version, device, limits, worlds and policies of this server.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "server/config/server_config.h"
#include "server/service/device.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {

// Complete but for the ports. `memory_limit_bytes`: of all admitted requests.
v1::ServerInfo ServerInfoOf(const config::ServerConfig& config, const Device& device,
                            int64_t memory_limit_bytes);

}  // namespace simgrad::server::service
