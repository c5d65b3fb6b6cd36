// Whether the threads of a gRPC server answer calls: asks its health service inside the process.
//
// Any answer counts, also a refusal: only silence is worth telling. No port, certificate or token
// stands in between.
// Threads: any.
#pragma once

#include <grpcpp/server.h>

#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

class CallProbe {
 public:
  // The server lives until Close.
  explicit CallProbe(grpc::Server* server) : server_(server) {}

  // Errors: DEADLINE_EXCEEDED where nothing answers within `limit`.
  absl::Status Try(absl::Duration limit);
  // Before the server shuts down: no call begins any more.
  void Close();
  // After it has shut down: waits for a call that had begun.
  void Join();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  grpc::Server* server_;
  int calls_ = 0;
};

}  // namespace simgrad::server::service
