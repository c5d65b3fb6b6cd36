// One call of grpc.health.v1.Health/Check, for the server as a whole.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <memory>

namespace simgrad::server::service {

struct HealthAnswer {
  grpc::Status status;
  bool serving = false;
};

// Waits at most until `deadline`.
HealthAnswer AskHealth(const std::shared_ptr<grpc::Channel>& channel,
                       std::chrono::system_clock::time_point deadline);

}  // namespace simgrad::server::service
