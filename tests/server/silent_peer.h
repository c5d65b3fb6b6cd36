// A peer that begins one call over HTTP/2 by hand, allows every byte of the answer, and takes none
// from its socket: what the server writes stops in the kernel.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "server/descriptor.h"

namespace simgrad::server {

class SilentPeer {
 public:
  // `request`: the bytes of the message.
  SilentPeer(int port, const std::string& path, const std::string& request)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int small = 1 << 12;
    setsockopt(socket_.number(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    constexpr uint32_t kMost = (uint32_t{1} << 31) - 1, kDefaultWindow = (1 << 16) - 1;
    // INITIAL_WINDOW_SIZE is setting 4.
    std::string text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                       Frame(kSettings, 0, 0, Number(4, 2) + Number(kMost, 4)) +
                       Frame(kWindowUpdate, 0, 0, Number(kMost - kDefaultWindow, 4));
    const auto size = static_cast<uint32_t>(request.size());
    text += Frame(kHeaders, kEndHeaders, 1, Headers(path)) +
            Frame(kData, kEndStream, 1, '\0' + Number(size, 4) + request);
    EXPECT_EQ(send(socket_.number(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

 private:
  enum Kind : uint8_t { kData = 0, kHeaders = 1, kSettings = 4, kWindowUpdate = 8 };
  enum Flag : uint8_t { kEndStream = 1, kEndHeaders = 4 };

  static std::string Number(uint32_t value, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  static std::string Frame(Kind kind, uint8_t flags, uint32_t stream, const std::string& payload) {
    return Number(static_cast<uint32_t>(payload.size()), 3) + Number(kind, 1) + Number(flags, 1) +
           Number(stream, 4) + payload;
  }
  // Literals that are added to no table; lengths below 127.
  static std::string Headers(const std::string& path) {
    std::string block;
    const std::pair<std::string, std::string> fields[] = {
        {":method", "POST"},         {":scheme", "http"}, {":path", path},
        {":authority", "localhost"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    for (const auto& [name, value] : fields) {
      block += '\0';
      for (const std::string& part : {name, value}) {
        block += static_cast<char>(part.size());
        block += part;
      }
    }
    return block;
  }

  const Descriptor socket_;
};

}  // namespace simgrad::server
