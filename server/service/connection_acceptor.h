// Accepts the connections of one port, within limits, and hands them to gRPC.
//
// gRPC's own listener closes for ever at the first error of accept, running out of descriptors
// among them, and takes any peer. This one loses its listening socket at no error: where
// descriptors are short it gives up a spare one to accept and close the connection, so that the
// caller is told at once, and waits where it has none. It watches a duplicate of each connection's
// descriptor, and so knows when one is over.
// Errors: Create fails with a message for a person where the port is not to be had.
// Threads: one of its own; everything else from any. Start before Stop, each once.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/descriptor.h"
#include "server/listening_sockets.h"
#include "server/metrics/server_metrics.h"
#include "server/service/connections.h"

namespace simgrad::server::service {

class ConnectionAcceptor {
 public:
  using Grpc = grpc::experimental::ExternalConnectionAcceptor;

  // Listens already; callers wait until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Create(
      const std::string& address, int port, const ConnectionLimits& limits,
      metrics::ConnectionMetrics& metrics);
  ~ConnectionAcceptor() { Stop(); }

  // Once the server of `grpc` has started.
  void Start(std::unique_ptr<Grpc> grpc);
  // Closes the port; what was accepted stays with gRPC. Before that server shuts down.
  void Stop();

  int port() const { return listening_.port; }
  Connections& connections() { return connections_; }

 private:
  ConnectionAcceptor(ListeningSockets listening, const ConnectionLimits& limits,
                     metrics::ConnectionMetrics& metrics);
  absl::Status Prepare();
  void Run();
  void AcceptAll(int listener);
  void Take(Descriptor connection, const sockaddr_storage& address);
  // False: no descriptor is to be had for now.
  bool Shed(int listener);
  void WatchListeners(uint32_t events);

  metrics::ConnectionMetrics& metrics_;
  ListeningSockets listening_;
  Connections connections_;
  Descriptor epoll_, wake_;
  Descriptor spare_;  // given up to accept and close a connection where there are no others
  bool short_of_descriptors_ = false;
  std::unique_ptr<Grpc> grpc_;
  std::jthread thread_;
};

// Has the server that `builder` builds take the connections that an acceptor hands on.
std::unique_ptr<ConnectionAcceptor::Grpc> AcceptedBy(
    grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);

}  // namespace simgrad::server::service
