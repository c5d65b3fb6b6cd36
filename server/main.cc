// simgrad-server: reads flags, starts the server, waits for SIGTERM or SIGINT, drains.
#include <google/protobuf/stubs/logging.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/service/request_log.h"
#include "server/service/server.h"

namespace {

constexpr int kCouldNotStart = 1;
constexpr int kBadFlags = 2;
constexpr int kCancelledWork = 3;
constexpr int kLostDevice = 4;

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && arguments[0] == "--help") {
    std::fputs(simgrad::server::config::FlagsHelp().c_str(), stdout);
    return 0;
  }
  const auto config = simgrad::server::config::ParseFlags(arguments);
  if (!config.ok()) {
    std::fprintf(stderr, "simgrad-server: %s\n", std::string(config.status().message()).c_str());
    return kBadFlags;
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
  if (!server.ok()) {
    std::fprintf(stderr, "simgrad-server: %s\n", std::string(server.status().message()).c_str());
    return kCouldNotStart;
  }
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
