#include "server/service/memory_shares.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/server_identity.h"

namespace simgrad::server::service {

absl::Status CheckShares(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  for (const auto& [flag, bytes] : {std::pair("kept_run_bytes", config.kept_run_bytes),
                                    std::pair("content_bytes", config.content_bytes)}) {
    if (bytes <= memory_limit_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", bytes, ": must be at most the memory limit, ",
                     memory_limit_bytes, " bytes (--memory_limit_bytes)"));
  }
  return absl::OkStatus();
}

int64_t KeptBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  return config.kept_run_bytes > 0 ? config.kept_run_bytes : memory_limit_bytes / 4;
}

int64_t ContentBytesOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  const int64_t bytes = config.content_bytes > 0 ? config.content_bytes : memory_limit_bytes / 8;
  return std::max(bytes, 2 * Contents::kBesideContent);
}

KeptRunsOptions KeptOptionsOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  KeptRunsOptions options;
  options.replica = ReplicaOf(config);
  options.ttl = config.kept_run_ttl;
  options.max_bytes = KeptBytesOf(config, memory_limit_bytes);
  return options;
}

ContentsOptions ContentsOptionsOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  ContentsOptions options;
  options.ttl = config.content_ttl;
  options.max_bytes = ContentBytesOf(config, memory_limit_bytes);
  return options;
}

// Entries are given up where work needs their memory, so the share may be generous.
conversion::ProgramCacheOptions CacheOptionsOf(const config::ServerConfig& config,
                                               int64_t memory_limit_bytes) {
  conversion::ProgramCacheOptions options;
  options.max_entries = config.program_cache_entries;
  options.max_bytes = memory_limit_bytes / 16;
  return options;
}

}  // namespace simgrad::server::service
