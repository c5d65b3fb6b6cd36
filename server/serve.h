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
  kCancelledWork = 3,  // the drain timeout passed
  kLostDevice = 4,
};

// Writes the message to stderr; returns the code.
int Complain(const absl::Status& status, ExitCode code);

// Creates a server and runs it until SIGTERM, SIGINT or the loss of its device; returns the exit
// code of the process. After a lost device it does not return: the process ends at most
// config.fatal_exit_after (but two seconds) later, whatever the driver still holds.
// Threads: called by the only thread of the process.
int Serve(const config::ServerConfig& config,
          const std::function<absl::StatusOr<std::unique_ptr<service::Server>>()>& create);

}  // namespace simgrad::server
