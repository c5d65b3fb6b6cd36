// The whole server as one object: device, queue, metrics, gRPC and HTTP ports.
//
// Errors: Create fails with a message for a person where it cannot have a device, an address or a
//   port.
// Threads: Drain and the accessors from any; health and reflection are gRPC's own.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/server_config.h"
#include "server/metrics/exposer.h"
#include "server/metrics/server_metrics.h"
#include "server/scheduling/scheduler.h"
#include "server/service/call_probe.h"
#include "server/service/call_queue.h"
#include "server/service/connection_acceptor.h"
#include "server/service/device.h"
#include "server/service/health_port.h"
#include "server/service/held_refusals.h"
#include "server/service/incoming_calls.h"
#include "server/service/open_streams.h"
#include "server/service/self_check.h"
#include "server/service/serving_state.h"
#include "server/service/simgrad_service.h"
#include "server/service/tls_files.h"
#include "server/service/uploads.h"
#include "server/tracing/span_exporter.h"

namespace simgrad::server::service {

class Server {
 public:
  // Whether the files of a configuration can be used, and its shares of the memory fit, whatever memory the
  // device turns out to have. Nothing is kept.
  // Errors: INVALID_ARGUMENT with the flag.
  static absl::Status CheckFiles(const config::ServerConfig& config);

  static absl::StatusOr<std::unique_ptr<Server>> Create(const config::ServerConfig& config);
  // On a device that is open already.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const config::ServerConfig& config,
                                                        Device device);
  // Cancels what still runs.
  ~Server();

  int port() const { return port_; }
  int metrics_port() const { return exposer_->port(); }
  // 0: none.
  int health_port() const { return health_ == nullptr ? 0 : health_->port(); }
  // "simgrad-server 0.1.0 listening on 127.0.0.1:8001, metrics on 127.0.0.1:8002, device cpu
  // (...)".
  std::string Banner() const;

  // Health NOT_SERVING, ready 0, no new work; waits for what was admitted, then closes the ports.
  // Returns whether all of it ended by itself within the time.
  bool Drain(absl::Duration timeout);
  // Drains without closing the ports; unlike Drain it returns in time where a call hangs.
  bool FinishWork(absl::Duration timeout);
  // Only the first half: from now on new work is refused.
  void StopAdmission();
  // Sends the spans that wait, at most this long; later ones are dropped.
  void CloseSpans(absl::Duration timeout);
  // Cancels what waits and runs; FinishWork and Drain, which may wait for it, then end soon.
  void CancelWork();
  // Nothing runs any more; the process should end soon (--fatal_exit_after).
  bool HasLostDevice() const { return device_.IsLost(); }
  // It does not serve, and will not; the process should end at once.
  bool HasFailedSelfCheck() const { return self_check_ != nullptr && self_check_->HasFailed(); }

  const scheduling::Scheduler& queue() const { return *scheduler_; }
  scheduling::WorkQueue& preparation() { return scheduler_->preparation(); }
  const scheduling::WorkQueue& preparation() const {
    return std::as_const(*scheduler_).preparation();
  }
  metrics::ServerMetrics& metrics() { return *metrics_; }
  // Reads the TLS files now; tokens are looked at whenever they are used. False: there are none, or they cannot
  // be used, and those known before stay.
  bool ReadFilesAgain();
  const SelfCheck* self_check() const { return self_check_.get(); }  // null: none asked for

 private:
  Server() = default;
  void MakeService(const config::ServerConfig& config);
  absl::Status ExposeMetrics(const config::ServerConfig& config);
  absl::Status Listen(const config::ServerConfig& config);
  absl::Status ListenForHealth(const config::ServerConfig& config);
  void WatchCertificate(absl::Duration interval);
  void TellExpiry();
  absl::Status StartSpans(const config::ServerConfig& config);
  absl::Status StartSelfCheck(const config::ServerConfig& config);
  void ReportCompiles();
  void ShutDown();  // both ports, now

  std::string address_;
  int64_t descriptors_ = 0;  // that this process may have
  Device device_;
  int port_ = 0;
  std::unique_ptr<metrics::ServerMetrics> metrics_;
  std::unique_ptr<tracing::SpanExporter> spans_;  // null: none asked for
  std::unique_ptr<scheduling::Scheduler> scheduler_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // outlives grpc_, which tells it of each call
  std::unique_ptr<SimgradService> service_;
  std::unique_ptr<OpenStreams> streams_;  // go before the service that they speak to
  std::unique_ptr<TokenGate> token_gate_;
  std::shared_ptr<TlsFiles> tls_;  // null: plaintext
  std::shared_ptr<Uploads> uploads_;
  std::shared_ptr<HeldRefusals> held_refusals_;
  SimgradName name_;
  std::unique_ptr<CallQueue> calls_;
  std::unique_ptr<IncomingCalls> incoming_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HealthPort> health_;  // null: none asked for
  std::unique_ptr<metrics::Exposer> exposer_;
  std::jthread certificate_watch_;
  std::unique_ptr<ServingState> serving_;  // of grpc_ and health_
  std::shared_ptr<CallProbe> call_probe_;  // of grpc_
  std::unique_ptr<SelfCheck> self_check_;
  std::atomic<bool> hurried_{false};
  std::atomic<bool> cut_{false};  // by CancelWork
};

}  // namespace simgrad::server::service
