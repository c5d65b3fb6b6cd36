// Counts an RPC: started, in flight, handled with its code, and how long it took.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/metrics/server_metrics.h"
#include "server/service/stage_clock.h"

namespace simgrad::server::service {

class RpcScope {
 public:
  RpcScope(metrics::ServerMetrics& metrics, const std::string& method);
  // Once; the log line is the caller's.
  void End(const std::string& code);
  metrics::MethodMetrics& method() { return metrics_; }
  const Moment& began() const { return began_; }
  double Seconds() const { return began_.SecondsSince(); }

 private:
  metrics::MethodMetrics& metrics_;
  const Moment began_;
};

}  // namespace simgrad::server::service
