// The life of the process around a server: signals, the line when it listens, drain, exit codes.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"
#include "server/service/server.h"

namespace simgrad::server {

enum ExitCode : int {
  kStopped = 0,
  kCouldNotStart = 1,
  kBadFlags = 2,
  kCancelledWork = 3,  // the drain timeout passed, or a second signal came
  kLostDevice = 4,
  kFailedSelfCheck = 5,
};

// Writes the message to stderr; returns the code.
int Complain(const absl::Status& status, ExitCode code);

// Creates a server and runs it until SIGTERM, SIGINT, the loss of its device or the failure of its
// check of itself (service/self_check.h); returns the exit code of the process, or ends it.
// Whatever hangs, the process ends at most two seconds after config.drain_timeout has passed since
// the signal (kCancelledWork), two seconds after a second signal, config.fatal_exit_after and at least
// two seconds after a lost device, and three seconds after a failed check. With --otlp_endpoint the
// first two are four seconds.
// Threads: called by the only thread of the process.
int Serve(const config::ServerConfig& config,
          const std::function<absl::StatusOr<std::unique_ptr<service::Server>>()>& create);

}  // namespace simgrad::server
