#include "server/service/health_port.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/listening_sockets.h"
#include "server/service/call_watch.h"
#include "server/service/port_limits.h"

namespace simgrad::server::service {
namespace {

constexpr int64_t kQuotaBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Create(
    const config::ServerConfig& config, int64_t descriptors, metrics::ConnectionMetrics& metrics) {
  auto acceptor = ConnectionAcceptor::Create(
      config.address, config.health_port, HealthConnectionLimitsOf(config, descriptors), metrics);
  if (!acceptor.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for health checks on ", HostAndPort(config.address, config.health_port),
        " (", std::string(acceptor.status().message()),
        "); is the port taken? --health_port chooses another"));
  }
  std::unique_ptr<HealthPort> port(new HealthPort(*std::move(acceptor)));
  if (absl::Status status = port->Start(config); !status.ok()) return status;
  return port;
}

absl::Status HealthPort::Start(const config::ServerConfig& config) {
  grpc::ServerBuilder builder;
  Harden(builder, config, kQuotaBytes);
  KeepPlugins(builder, {});
  builder.SetMaxReceiveMessageSize(1 << 12);
  // gRPC does not build a server that has nothing but its own health service.
  builder.RegisterCallbackGenericService(&nothing_else_);
  WatchCalls(builder, acceptor_->connections(), Watched::kAll);
  auto grpc = AcceptedBy(builder, grpc::InsecureServerCredentials());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC did not start for health checks");
  acceptor_->Start(std::move(grpc));
  return absl::OkStatus();
}

}  // namespace simgrad::server::service
