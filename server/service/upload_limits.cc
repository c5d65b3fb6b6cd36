#include "server/service/upload_limits.h"

#include <algorithm>

namespace simgrad::server::service {

UploadLimits UploadLimitsOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  UploadLimits limits;
  limits.bytes = std::max(memory_limit_bytes / 4, 2 * config.max_request_bytes);
  limits.message_bytes = config.max_request_bytes;
  limits.timeout = config.upload_timeout;
  return limits;
}

int64_t GrpcMemoryOf(const config::ServerConfig& config, int64_t memory_limit_bytes) {
  if (config.grpc_memory_bytes > 0) return config.grpc_memory_bytes;
  constexpr int64_t kLeast = int64_t{512} << 20;
  return std::max(
      {memory_limit_bytes, 2 * UploadLimitsOf(config, memory_limit_bytes).bytes, kLeast});
}

}  // namespace simgrad::server::service
