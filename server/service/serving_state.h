// The one answer to whether the server serves, for health checks and for simgrad_ready: it does while
// it admits work and the last check of the server itself succeeded.
//
// Threads: any.
#pragma once

#include <grpcpp/server.h>

#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "server/metrics/guarded.h"

namespace simgrad::server::service {

class ServingState {
 public:
  // The health services of `servers` are told. All of them, and `ready`, outlive every call. Nothing is
  // told before the first one.
  ServingState(metrics::GuardedGauge& ready, std::vector<grpc::Server*> servers);

  void SetAdmitting(bool admitting);
  // As SelfCheck tells; logged while work is admitted.
  void OnSelfCheck(const absl::Status& outcome);

 private:
  void Tell();  // mutex_ held

  metrics::GuardedGauge& ready_;
  const std::vector<grpc::Server*> servers_;
  std::mutex mutex_;
  bool admitting_ = false;
  bool well_ = true;  // as the last check of ourselves found
};

}  // namespace simgrad::server::service
