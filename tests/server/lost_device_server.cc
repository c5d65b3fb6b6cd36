// The server on a GPU whose first work never returns and whose second loses it: what
// lost_device_test.py starts.
#include <cstdio>
#include <string>
#include <vector>

#include "server/config/parse_flags.h"
#include "server/serve.h"
#include "tests/server/lost_gpu.h"

int main(int argc, char** argv) {
  using namespace simgrad::server;
  const auto config = config::ParseFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!config.ok()) return Complain(config.status(), kBadFlags);
  return Serve(*config, [&] {
    return service::Server::Create(*config,
                                   DeviceOf(std::make_shared<LostGpu>(FirstWork::kNeverReturns)));
  });
}
