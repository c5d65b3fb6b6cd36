#include "server/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::server {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::Status Failed(const char* what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::UnavailableError(message);
}

absl::StatusOr<Addresses> Resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

void Allow(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

absl::StatusOr<int> PortOf(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return Failed("getsockname", errno);
  }
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

enum class Families : uint8_t { kItsOwn, kBoth };

// `port` 0: what the address says, else this one instead.
absl::StatusOr<Descriptor> ListenOn(const addrinfo& address, int port, Families families) {
  sockaddr_storage where{};
  std::memcpy(&where, address.ai_addr, address.ai_addrlen);
  if (port != 0) {
    const auto network = htons(static_cast<uint16_t>(port));
    (where.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(where).sin6_port
                                 : reinterpret_cast<sockaddr_in&>(where).sin_port) = network;
  }
  Descriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) return Failed("socket", errno);
  // A port whose connections of before are still in TIME_WAIT is free.
  Allow(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) {
    Allow(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, families == Families::kBoth ? 0 : 1);
  }
  if (bind(socket.number(), reinterpret_cast<sockaddr*>(&where), address.ai_addrlen) != 0) {
    return Failed("bind", errno);
  }
  if (listen(socket.number(), SOMAXCONN) != 0) return Failed("listen", errno);
  return socket;
}

absl::StatusOr<ListeningSockets> ListenOnEach(const std::string& address, int port,
                                              Families families) {
  auto addresses = Resolve(address, port);
  if (!addresses.ok()) return addresses.status();
  ListeningSockets listening;
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    auto socket = ListenOn(*one, listening.port, families);
    if (!socket.ok()) {
      last = socket.status();
      // The machine may lack one of two families; a port that is taken on one of them is taken.
      if (absl::IsAlreadyExists(last) && port != 0) return last;
      continue;
    }
    const auto bound = PortOf(socket->number());
    if (!bound.ok()) return bound.status();
    listening.port = *bound;
    listening.sockets.push_back(*std::move(socket));
  }
  if (listening.sockets.empty()) return last;
  return listening;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenOn(const std::string& address, int port) {
  if (address != "0.0.0.0" && address != "::") {
    return ListenOnEach(address, port, Families::kItsOwn);
  }
  auto both = ListenOnEach("::", port, Families::kBoth);
  if (both.ok() || address == "::") return both;
  return ListenOnEach("0.0.0.0", port, Families::kItsOwn);  // a machine without IPv6
}

std::string HostAndPort(const std::string& address, int port) {
  const bool v6 = address.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
}

}  // namespace simgrad::server
