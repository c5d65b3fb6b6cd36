// A plaintext port that answers health checks and nothing else: probes need neither TLS nor a token.
//
// Errors: Create fails with a message for a person where the port is not to be had.
// Threads: any.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"
#include "server/metrics/server_metrics.h"
#include "server/service/connection_acceptor.h"

namespace simgrad::server::service {

// Its owner stops the acceptor and shuts the server down before this is destroyed.
class HealthPort {
 public:
  // Answers from now on, with gRPC's own health service: grpc::EnableDefaultHealthCheckService(true)
  // comes before. `descriptors`: those that this process may have.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Create(const config::ServerConfig& config,
                                                            int64_t descriptors,
                                                            metrics::ConnectionMetrics& metrics);

  int port() const { return acceptor_->port(); }
  grpc::Server* server() const { return grpc_.get(); }
  ConnectionAcceptor& acceptor() { return *acceptor_; }

 private:
  explicit HealthPort(std::unique_ptr<ConnectionAcceptor> acceptor)
      : acceptor_(std::move(acceptor)) {}
  absl::Status Start(const config::ServerConfig& config);

  std::unique_ptr<ConnectionAcceptor> acceptor_;  // outlives the server, which tells it of calls
  grpc::CallbackGenericService nothing_else_;     // answers UNIMPLEMENTED
  std::unique_ptr<grpc::Server> grpc_;
};

}  // namespace simgrad::server::service
