#include "server/service/port_limits.h"

#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/service/descriptor_limit.h"

namespace simgrad::server::service {
namespace {

// Shares what descriptors allow between the two ports: a probe has one connection, seldom two.
constexpr int64_t kMostHealthConnections = 128;

class KeptPlugins final : public grpc::ServerBuilderOption {
 public:
  explicit KeptPlugins(std::vector<std::string> names) : names_(std::move(names)) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [this](const auto& plugin) {
      return std::find(names_.begin(), names_.end(), plugin->name()) == names_.end();
    });
  }

 private:
  const std::vector<std::string> names_;
};

}  // namespace

ConnectionLimits ConnectionLimitsOf(const config::ServerConfig& config, int64_t descriptors) {
  ConnectionLimits limits;
  limits.total =
      config.max_connections > 0 ? config.max_connections : ConnectionsWithin(descriptors);
  limits.per_host = config.max_connections_per_peer > 0 ? config.max_connections_per_peer
                                                        : std::max<int64_t>(limits.total / 2, 1);
  limits.handshake_timeout = config.handshake_timeout;
  return limits;
}

ConnectionLimits HealthConnectionLimitsOf(const config::ServerConfig& config, int64_t descriptors) {
  ConnectionLimits limits = ConnectionLimitsOf(config, descriptors);
  limits.total = std::min(std::max<int64_t>(limits.total / 8, 1), kMostHealthConnections);
  limits.per_host = std::max<int64_t>(limits.total / 2, 1);
  return limits;
}

void Harden(grpc::ServerBuilder& builder, const config::ServerConfig& config, int64_t quota_bytes) {
  // Messages are never inflated: their size is what was sent. A call whose messages are compressed
  // ends UNIMPLEMENTED, and the filter that would inflate them before that is left out.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(config.handshake_timeout)));
  // A peer that is gone without a word is noticed, with calls and without.
  constexpr int kAskAfter = 60'000, kAnswerWithin = 20'000;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAskAfter);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAnswerWithin);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A caller may ask as well, while its work says nothing for long. gRPC would allow that every five minutes.
  constexpr int kMayAskEvery = 5'000;
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMayAskEvery);
  grpc::ResourceQuota quota("simgrad");
  quota.Resize(static_cast<size_t>(quota_bytes));
  // The threads of reflection and channelz, which hold one for each call.
  constexpr int kThreads = 32;
  quota.SetMaxThreads(kThreads);
  builder.SetResourceQuota(quota);
}

void KeepPlugins(grpc::ServerBuilder& builder, std::vector<std::string> names) {
  builder.SetOption(std::make_unique<KeptPlugins>(std::move(names)));
}

}  // namespace simgrad::server::service
