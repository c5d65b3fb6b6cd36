#include "server/serve.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/service/request_log.h"

namespace simgrad::server {
namespace {

// What gRPC has to say, handshakes that fail above all, in lines like the others: bounded, quoted,
// written in the background. It carries what strangers sent, so it is cut.
void LogOfGrpc(gpr_log_func_args* args) {
  using service::LogLevel;
  // An error of a connection is no error of ours.
  const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
  const LogLevel level = error ? LogLevel::kWarning : LogLevel::kInfo;
  constexpr size_t kMaxMessage = 400;
  service::LogNote(level,
                   absl::StrCat("gRPC: ", std::string(args->message).substr(0, kMaxMessage)));
}

}  // namespace

int Complain(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "simgrad-server: %s\n", std::string(status.message()).c_str());
  return code;
}

int Serve(const config::ServerConfig& config,
          const std::function<absl::StatusOr<std::unique_ptr<service::Server>>()>& create) {
  // Blocked before any thread starts, so that only the wait below sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  // What a caller sends must not write to our log at will.
  google::protobuf::SetLogHandler(nullptr);
  gpr_set_log_function(&LogOfGrpc);

  const auto server = create();
  if (!server.ok()) return Complain(server.status(), kCouldNotStart);
  std::printf("%s\n", (*server)->Banner().c_str());
  std::fflush(stdout);

  // A lost device ends the process too; it is looked for between signals.
  constexpr timespec kLook = {0, 200'000'000};
  while (sigtimedwait(&signals, nullptr, &kLook) < 0 && !(*server)->HasLostDevice()) {
  }
  if ((*server)->HasLostDevice()) {
    service::LogNote(service::LogLevel::kError, "the device is lost; the process ends");
    // Cancelled work has a second to say so (FinishWork), and the log one to be written.
    const absl::Duration rest = config.fatal_exit_after - absl::Seconds(2);
    (*server)->FinishWork(std::max(rest, absl::ZeroDuration()));
    service::FlushLog(absl::Seconds(1));
    // A call into the driver of a lost device may never return: nothing waits for its thread.
    _exit(kLostDevice);
  }
  service::LogNote(service::LogLevel::kInfo, "draining");
  const bool drained = (*server)->Drain(config.drain_timeout);
  service::LogNote(drained ? service::LogLevel::kInfo : service::LogLevel::kWarning,
                   drained ? "drained" : "drained; work had to be cancelled");
  service::FlushLog(absl::Seconds(1));
  return drained ? kStopped : kCancelledWork;
}

}  // namespace simgrad::server
