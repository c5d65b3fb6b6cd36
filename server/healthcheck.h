// Asks a server of this machine whether it serves: what a container's health check runs.
#pragma once

#include "absl/status/status.h"
#include "server/config/server_config.h"

namespace simgrad::server {

// The server with these ports: the health port where there is one, else the gRPC port in plaintext.
// Errors: FAILED_PRECONDITION where there is TLS but no health port; UNAVAILABLE where no answer
//   comes within three seconds, or the answer is not SERVING.
absl::Status CheckHealth(const config::ServerConfig& config);

}  // namespace simgrad::server
