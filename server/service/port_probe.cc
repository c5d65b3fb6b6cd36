#include "server/service/port_probe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/descriptor.h"

namespace simgrad::server::service {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

// The first bytes of a client, RFC 9113 section 3.4: the preface and an empty SETTINGS frame.
constexpr std::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

bool IsShortageOfOurs(int error) {
  return error == EADDRNOTAVAIL || error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

void SetLimit(const Descriptor& socket, absl::Duration limit) {
  const timeval time = absl::ToTimeval(limit);
  setsockopt(socket.number(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));  // connect too
  setsockopt(socket.number(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
}

// How a client begins a TLS handshake; empty where OpenSSL has no memory.
std::string ClientHello() {
  const Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return "";
  const Session session(SSL_new(context.get()), &SSL_free);
  BIO* const received = BIO_new(BIO_s_mem());
  BIO* const sent = BIO_new(BIO_s_mem());
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  if (session == nullptr || received == nullptr || sent == nullptr ||
      SSL_set_alpn_protos(session.get(), kHttp2, sizeof(kHttp2)) != 0) {
    BIO_free(received);
    BIO_free(sent);
    return "";
  }
  SSL_set_bio(session.get(), received, sent);  // which owns them now
  SSL_connect(session.get());                  // goes as far as the first answer
  char* data = nullptr;
  const long size = BIO_get_mem_data(sent, &data);
  return {data, static_cast<size_t>(std::max(size, 0L))};
}

absl::Status AwaitAnswer(const Descriptor& socket, std::string_view hello) {
  if (send(socket.number(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    return absl::OkStatus();  // it was closed
  }
  char byte = 0;
  if (recv(socket.number(), &byte, 1, 0) >= 0) return absl::OkStatus();
  const bool silent = errno == EAGAIN || errno == EWOULDBLOCK;
  return silent ? absl::DeadlineExceededError("takes a connection and says nothing")
                : absl::OkStatus();
}

}  // namespace

absl::Status TryPort(const std::string& host, int port, PortSpeaks speaks, absl::Duration limit) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  const Addresses address(found, &freeaddrinfo);
  if (address == nullptr) return absl::OkStatus();
  const Descriptor socket(
      ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, address->ai_protocol));
  if (!socket) return absl::OkStatus();
  SetLimit(socket, limit);
  if (connect(socket.number(), address->ai_addr, address->ai_addrlen) != 0) {
    if (IsShortageOfOurs(errno)) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot be connected to: ", std::strerror(errno)));
  }
  if (speaks == PortSpeaks::kPlaintext) return AwaitAnswer(socket, kHello);
  const std::string hello = ClientHello();
  return hello.empty() ? absl::OkStatus() : AwaitAnswer(socket, hello);
}

}  // namespace simgrad::server::service
