// simgrad-server: reads flags, then serves, or does what they ask for instead.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/config/version.h"
#include "server/healthcheck.h"
#include "server/serve.h"

namespace {

// The command line of the first process of this container or machine; its words end with zeros.
std::string FirstProcess() {
  std::ifstream file("/proc/1/cmdline", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace simgrad::server;
  using config::Action;
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const Action action = config::TakeAction(arguments);
  if (action == Action::kHelp) {
    std::fputs(config::FlagsHelp().c_str(), stdout);
    return kStopped;
  }
  if (action == Action::kVersion) {
    std::printf("simgrad-server %s %s\n", config::kVersion, config::kRevision);
    return kStopped;
  }
  // A container's health check is written before anyone knows the server's flags.
  if (action == Action::kHealthCheck && arguments.empty()) {
    arguments = config::FlagsInCommandLine(FirstProcess());
  }
  const auto parsed = config::ParseFlags(arguments);
  if (!parsed.ok()) return Complain(parsed.status(), kBadFlags);
  if (action == Action::kHealthCheck) {
    const absl::Status health = CheckHealth(*parsed);
    return health.ok() ? kStopped : Complain(health, kCouldNotStart);
  }
  if (const absl::Status files = service::Server::CheckFiles(*parsed); !files.ok()) {
    return Complain(files, kBadFlags);
  }
  if (action == Action::kValidateConfig) {
    for (const std::string& warning : config::Warnings(*parsed)) {
      std::fprintf(stderr, "simgrad-server: warning: %s\n", warning.c_str());
    }
    return kStopped;
  }
  return Serve(*parsed, [&] { return service::Server::Create(*parsed); });
}
