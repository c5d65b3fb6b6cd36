// The server on an executor that hangs when it is told to, or that never starts (--replica=never): what
// hanging_server_test.py starts.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/serve.h"
#include "tests/server/hanging_executor.h"

int main(int argc, char** argv) {
  using namespace simgrad::server;
  const auto config = config::ParseFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!config.ok()) return Complain(config.status(), kBadFlags);
  return Serve(*config, [&] {
    const auto tell = [] {
      std::puts("hanging");
      std::fflush(stdout);
    };
    if (config->replica == "never") {
      std::puts("starting");
      std::fflush(stdout);
      for (;;) pause();
    }
    return service::Server::Create(*config, DeviceOf(std::make_shared<HangingExecutor>(tell)));
  });
}
