// The shares of the memory limit that may be kept between requests: rollouts, uploaded content,
// programs. All of it is given up where work needs the memory.
//
// Units: bytes. Threads: any.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/config/server_config.h"
#include "server/conversion/program_cache.h"
#include "server/service/contents.h"
#include "server/service/kept_runs.h"

namespace simgrad::server::service {

// Checks the shares that flags set. Errors: INVALID_ARGUMENT with the flag, where one is above the
// limit.
absl::Status CheckShares(const config::ServerConfig& config, int64_t memory_limit_bytes);

// Kept rollouts: a quarter where no flag says how much.
int64_t KeptBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes);
// Uploaded content: an eighth where no flag says how much.
int64_t ContentBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes);

KeptRunsOptions KeptOptionsOf(const config::ServerConfig& config, int64_t memory_limit_bytes);
ContentsOptions ContentsOptionsOf(const config::ServerConfig& config, int64_t memory_limit_bytes);
// A sixteenth.
conversion::ProgramCacheOptions CacheOptionsOf(const config::ServerConfig& config,
                                               int64_t memory_limit_bytes);

}  // namespace simgrad::server::service
