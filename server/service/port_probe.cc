#include "server/service/port_probe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/metrics/descriptor.h"

namespace simgrad::server::service {
namespace {

using metrics::Descriptor;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

// What a client says first, RFC 9113 section 3.4: the preface and an empty SETTINGS frame.
constexpr std::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

absl::Status Silent() { return absl::DeadlineExceededError("took a connection and says nothing"); }

bool IsShortageOfOurs(int error) {
  return error == EADDRNOTAVAIL || error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

void SetLimit(const Descriptor& socket, absl::Duration limit) {
  const timeval time = absl::ToTimeval(limit);
  setsockopt(socket.number(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));  // connect too
  setsockopt(socket.number(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
}

absl::Status TryPlaintext(const Descriptor& socket) {
  if (send(socket.number(), kHello.data(), kHello.size(), MSG_NOSIGNAL) < 0) {
    return absl::OkStatus();  // it was closed
  }
  char byte = 0;
  const ssize_t bytes = recv(socket.number(), &byte, 1, 0);
  return bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Silent() : absl::OkStatus();
}

absl::Status TryTls(const Descriptor& socket) {
  // OpenSSL writes without MSG_NOSIGNAL; a signal that is blocked goes with its thread.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  const Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return absl::OkStatus();
  const Session session(SSL_new(context.get()), &SSL_free);
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  if (session == nullptr || SSL_set_alpn_protos(session.get(), kHttp2, sizeof(kHttp2)) != 0 ||
      SSL_set_fd(session.get(), socket.number()) != 1) {
    return absl::OkStatus();
  }
  const auto is_silence = [&](int result) {
    const int error = SSL_get_error(session.get(), result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  };
  int result = SSL_connect(session.get());
  if (result == 1) result = SSL_write(session.get(), kHello.data(), kHello.size());
  char byte = 0;
  if (result > 0) result = SSL_read(session.get(), &byte, 1);
  return result <= 0 && is_silence(result) ? Silent() : absl::OkStatus();
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
  return speaks == PortSpeaks::kTls ? TryTls(socket) : TryPlaintext(socket);
}

}  // namespace simgrad::server::service
