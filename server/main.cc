// simgrad-server: reads flags, then serves, or does what they ask for instead.
#include <cstdio>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/healthcheck.h"
#include "server/serve.h"
#include "server/service/transport_security.h"

int main(int argc, char** argv) {
  using namespace simgrad::server;
  using config::Action;
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const Action action = config::TakeAction(arguments);
  if (action == Action::kHelp) {
    std::fputs(config::FlagsHelp().c_str(), stdout);
    return kStopped;
  }
  const auto parsed = config::ParseFlags(arguments);
  if (!parsed.ok()) return Complain(parsed.status(), kBadFlags);
  if (action == Action::kHealthCheck) {
    const absl::Status health = CheckHealth(*parsed);
    return health.ok() ? kStopped : Complain(health, kCouldNotStart);
  }
  if (action == Action::kValidateConfig) {
    const absl::Status files = service::CheckSecurityFiles(*parsed);
    return files.ok() ? kStopped : Complain(files, kBadFlags);
  }
  return Serve(*parsed, [&] { return service::Server::Create(*parsed); });
}
