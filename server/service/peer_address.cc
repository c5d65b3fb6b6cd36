#include "server/service/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace simgrad::server::service {
namespace {

PeerAddress OfV4(const in_addr& address, uint16_t port) {
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return {absl::StrCat("ipv4:", text, ":", port), text};
}

}  // namespace

PeerAddress PeerAddressOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return OfV4(v4.sin_addr, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const uint16_t port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    in_addr v4{};
    std::memcpy(&v4, &v6.sin6_addr.s6_addr[12], sizeof(v4));
    return OfV4(v4, port);
  }
  char text[INET6_ADDRSTRLEN];
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  in6_addr network = v6.sin6_addr;
  std::memset(&network.s6_addr[8], 0, 8);
  char network_text[INET6_ADDRSTRLEN];
  inet_ntop(AF_INET6, &network, network_text, sizeof(network_text));
  // A zone is part of a link-local address.
  const std::string zone = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6.sin6_scope_id);
  return {absl::StrCat("ipv6:%5B", text, zone, "%5D:", port), absl::StrCat(network_text, "/64")};
}

}  // namespace simgrad::server::service
