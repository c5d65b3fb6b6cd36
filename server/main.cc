// simgrad-server: reads flags, starts the server, waits for SIGTERM or SIGINT, drains.
#include <google/protobuf/stubs/logging.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/healthcheck.h"
#include "server/service/request_log.h"
#include "server/service/server.h"
#include "server/service/transport_security.h"

namespace {

constexpr int kCouldNotStart = 1;
constexpr int kBadFlags = 2;
constexpr int kCancelledWork = 3;
constexpr int kLostDevice = 4;

using simgrad::server::config::Action;

// The command line of the first process of this container or machine; its words end with zeros.
std::string FirstProcess() {
  std::ifstream file("/proc/1/cmdline", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int Complain(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "simgrad-server: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const Action action = simgrad::server::config::TakeAction(arguments);
  if (action == Action::kHelp) {
    std::fputs(simgrad::server::config::FlagsHelp().c_str(), stdout);
    return 0;
  }
  // A container's health check is written before anyone knows the server's flags.
  if (action == Action::kHealthCheck && arguments.empty()) {
    arguments = simgrad::server::config::FlagsInCommandLine(FirstProcess());
  }
  const auto config = simgrad::server::config::ParseFlags(arguments);
  if (!config.ok()) return Complain(config.status(), kBadFlags);
  if (action == Action::kHealthCheck) {
    const absl::Status health = simgrad::server::CheckHealth(*config);
    return health.ok() ? 0 : Complain(health, kCouldNotStart);
  }
  if (action == Action::kValidateConfig) {
    const absl::Status files = simgrad::server::service::CheckSecurityFiles(*config);
    return files.ok() ? 0 : Complain(files, kBadFlags);
  }
  // Blocked before any thread starts, so that only sigwait below sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  // What a caller sends must not write to our log at will.
  google::protobuf::SetLogHandler(nullptr);

  auto server = simgrad::server::service::Server::Create(*config);
  if (!server.ok()) return Complain(server.status(), kCouldNotStart);
  std::printf("%s\n", (*server)->Banner().c_str());
  std::fflush(stdout);

  // A lost device ends the process too; it is looked for between signals.
  constexpr timespec kLook = {0, 200'000'000};
  while (sigtimedwait(&signals, nullptr, &kLook) < 0 && !(*server)->HasLostDevice()) {
  }
  if ((*server)->HasLostDevice()) {
    simgrad::server::service::LogNote("the device is lost; the process ends");
    (*server)->Drain(config->fatal_exit_after);
    simgrad::server::service::FlushLog(absl::Seconds(1));
    return kLostDevice;
  }
  simgrad::server::service::LogNote("draining");
  const bool drained = (*server)->Drain(config->drain_timeout);
  simgrad::server::service::LogNote(drained ? "drained" : "drained; work had to be cancelled");
  simgrad::server::service::FlushLog(absl::Seconds(1));
  return drained ? 0 : kCancelledWork;
}
