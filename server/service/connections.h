// The connections of one port: how many there are, whose they are, and a way to cut each of them.
//
// Holds a duplicate of each connection's descriptor, so a connection costs two. A duplicate stays
// the connection's own however gRPC numbers and closes its descriptor, and `shutdown` on it ends
// the connection whatever runs on it, TLS too.
// Threads: any. Cost: a look-up under one mutex for each call that begins, and one when it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/descriptor.h"
#include "server/metrics/server_metrics.h"
#include "server/service/peer_address.h"
#include "server/service/reset_window.h"

namespace simgrad::server::service {

struct ConnectionLimits {
  int64_t total = 4096;
  int64_t per_host = 2048;  // PeerAddress::host
  // gRPC ends a connection that has not said hello by then, or not begun to speak HTTP/2.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // Ends a connection whose peer takes nothing of what waits for it, or is gone: as long as gRPC's
  // keepalive takes.
  absl::Duration unread_timeout = absl::Seconds(80);
  ResetLimits resets;
};

class Connections {
 public:
  using Clock = std::chrono::steady_clock;
  Connections(ConnectionLimits limits, metrics::ConnectionMetrics& metrics)
      : limits_(limits), metrics_(metrics) {}
  ~Connections();

  // Takes note of a connection; false, and counted, where there are too many. `duplicate` is the
  // acceptor's to watch, and owned here until Remove.
  bool Add(const PeerAddress& peer, Descriptor duplicate, Clock::time_point now);
  // It is over: both directions are shut down.
  void Remove(int duplicate, Clock::time_point now);

  // `peer`: as grpc::ServerContext::peer() says.
  // Returns whether it is the first call of its connection.
  bool CallBegan(const std::string& peer);
  // May cut the connection.
  void CallEnded(const std::string& peer, bool early_cancelled, Clock::time_point now);
  void Cut(const std::string& peer);
  void CutAll();

  const ConnectionLimits& limits() const { return limits_; }
  // Bytes that have come for the connection and that gRPC has read; none where it is gone.
  int64_t BytesRead(const std::string& peer) const;

 private:
  struct Connection {
    PeerAddress peer;
    Descriptor duplicate;
    Clock::time_point since;
    bool served = false;  // a call has begun
    bool cut = false;
    ResetWindow resets;
  };
  struct Host {
    int64_t connections = 0;
    ResetWindow resets;
  };

  Connection* Find(const std::string& peer);
  bool EndedByHandshake(const Connection& connection, Clock::time_point now) const;
  void ForgetQuietHosts(Clock::time_point now);

  const ConnectionLimits limits_;
  metrics::ConnectionMetrics& metrics_;
  mutable std::mutex mutex_;
  std::unordered_map<int, Connection> connections_;  // by duplicate
  std::unordered_map<std::string, int> by_peer_;
  std::unordered_map<std::string, Host> hosts_;
};

}  // namespace simgrad::server::service
