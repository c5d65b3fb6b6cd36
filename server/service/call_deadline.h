// The deadline of a call, as a time of SteadyNow.
//
// A caller sends how long it waits. gRPC tells that as a date of the machine's clock, as that is set now.
// Threads: any.
#pragma once

#include <grpcpp/server_context.h>

#include <chrono>

#include "absl/time/time.h"
#include "server/scheduling/steady_time.h"

namespace simgrad::server::service {

// InfiniteFuture where the caller sets none.
inline absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const std::chrono::system_clock::time_point date = context.deadline();
  if (date == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyNow() + absl::FromChrono(date - std::chrono::system_clock::now());
}

}  // namespace simgrad::server::service
