// The names of a socket's other end: for gRPC, and for limits per peer.
#pragma once

#include <sys/socket.h>

#include <string>

namespace simgrad::server::service {

struct PeerAddress {
  // As grpc::ServerContext::peer() writes it: "ipv4:127.0.0.1:54321", "ipv6:%5B::1%5D:54321".
  std::string name;
  // The host whose connections count together: an IPv4 address, or an IPv6 network of 64 bits,
  // which one host is commonly given.
  std::string host;
};

// IPv4 within IPv6 counts as IPv4.
PeerAddress PeerAddressOf(const sockaddr_storage& address);

}  // namespace simgrad::server::service
