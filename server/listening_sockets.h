// Sockets that listen on a port of an address, ready to be accepted from without blocking.
//
// 0.0.0.0 and :: are both "every address, of both families"; a name listens on all that it stands
// for. A port that another process listens on is not shared.
// Errors: ALREADY_EXISTS where the port is taken, else UNAVAILABLE; with the system's reason.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/descriptor.h"

namespace simgrad::server {

struct ListeningSockets {
  std::vector<Descriptor> sockets;
  int port = 0;
};

// `port` 0: a free one.
absl::StatusOr<ListeningSockets> ListenOn(const std::string& address, int port);

// The address with its port as messages have it: "127.0.0.1:8001", "[::1]:8001".
std::string HostAndPort(const std::string& address, int port);

}  // namespace simgrad::server
