// Counts an RPC: started, in flight, handled with its code, and how long it took.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/time/time.h"
#include "server/metrics/server_metrics.h"

namespace simgrad::server::service {

class RpcScope {
 public:
  RpcScope(metrics::ServerMetrics& metrics, const std::string& method);
  // Once; the log line is the caller's.
  void End(const std::string& code);
  metrics::MethodMetrics& method() { return metrics_; }
  double Seconds() const;

 private:
  metrics::MethodMetrics& metrics_;
  const absl::Time start_;
};

}  // namespace simgrad::server::service
