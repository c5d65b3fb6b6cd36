#include "server/service/connection_acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::server::service {
namespace {

// After which accepting is tried again where there were no descriptors.
constexpr int kRetryMilliseconds = 50;

Descriptor SpareDescriptor() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool Watch(int epoll, int operation, int descriptor, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  return epoll_ctl(epoll, operation, descriptor, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Create(
    const std::string& address, int port, const ConnectionLimits& limits,
    metrics::ConnectionMetrics& metrics) {
  auto listening = ListenOn(address, port);
  if (!listening.ok()) return listening.status();
  std::unique_ptr<ConnectionAcceptor> acceptor(
      new ConnectionAcceptor(*std::move(listening), limits, metrics));
  if (absl::Status status = acceptor->Prepare(); !status.ok()) return status;
  return acceptor;
}

ConnectionAcceptor::ConnectionAcceptor(ListeningSockets listening, const ConnectionLimits& limits,
                                       metrics::ConnectionMetrics& metrics)
    : metrics_(metrics),
      listening_(std::move(listening)),
      connections_(limits, metrics),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      spare_(SpareDescriptor()) {}

absl::Status ConnectionAcceptor::Prepare() {
  bool good =
      epoll_ && wake_ && spare_ && Watch(epoll_.number(), EPOLL_CTL_ADD, wake_.number(), EPOLLIN);
  for (const Descriptor& listener : listening_.sockets) {
    good = good && Watch(epoll_.number(), EPOLL_CTL_ADD, listener.number(), EPOLLIN);
  }
  if (good) return absl::OkStatus();
  return absl::UnavailableError("no file descriptors are left");
}

void ConnectionAcceptor::Start(std::unique_ptr<Grpc> grpc) {
  grpc_ = std::move(grpc);
  thread_ = std::jthread([this] { Run(); });
}

void ConnectionAcceptor::Stop() {
  if (thread_.joinable()) {
    thread_.request_stop();
    const uint64_t one = 1;
    if (write(wake_.number(), &one, sizeof(one)) < 0) return;  // cannot fail: its count is 0
    thread_.join();
  }
  listening_.sockets.clear();
}

void ConnectionAcceptor::WatchListeners(uint32_t events) {
  for (const Descriptor& listener : listening_.sockets) {
    Watch(epoll_.number(), EPOLL_CTL_MOD, listener.number(), events);
  }
}

void ConnectionAcceptor::Run() {
  std::array<epoll_event, 256> events;
  const auto is_listener = [this](int number) {
    return std::any_of(listening_.sockets.begin(), listening_.sockets.end(),
                       [number](const Descriptor& one) { return one.number() == number; });
  };
  for (;;) {
    const int count = epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()),
                                 short_of_descriptors_ ? kRetryMilliseconds : -1);
    if (std::exchange(short_of_descriptors_, false)) WatchListeners(EPOLLIN);
    // Those that are over first: what they held is free for those that come.
    for (int i = 0; i < count; ++i) {
      const int number = events[static_cast<size_t>(i)].data.fd;
      if (number == wake_.number()) return;
      // An error without an end is none of ours.
      if (is_listener(number) || !(events[static_cast<size_t>(i)].events & EPOLLHUP)) continue;
      Watch(epoll_.number(), EPOLL_CTL_DEL, number, 0);
      connections_.Remove(number, Connections::Clock::now());
    }
    for (int i = 0; i < count; ++i) {
      const int number = events[static_cast<size_t>(i)].data.fd;
      if (is_listener(number)) AcceptAll(number);
    }
  }
}

void ConnectionAcceptor::AcceptAll(int listener) {
  // So many at once: those that are over are looked at in between.
  constexpr int kAtOnce = 64;
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    Descriptor connection(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection) {
      Take(std::move(connection), address);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Anything else is the connection's own misfortune; the next may be better.
    if (!IsShortage(errno)) continue;
    if (Shed(listener)) continue;
    short_of_descriptors_ = true;
    return WatchListeners(0);
  }
}

bool ConnectionAcceptor::Shed(int listener) {
  if (!spare_) spare_ = SpareDescriptor();
  if (!spare_) return false;
  spare_.Close();
  const bool accepted = Descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).number() >= 0;
  spare_ = SpareDescriptor();
  if (accepted) metrics_.rejected.at("descriptors").Increment();
  return accepted;
}

void ConnectionAcceptor::Take(Descriptor connection, const sockaddr_storage& address) {
  const int on = 1;
  setsockopt(connection.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // gRPC's keepalive does not see to this: it waits behind a write that the peer holds up.
  const auto unread =
      static_cast<unsigned>(absl::ToInt64Milliseconds(connections_.limits().unread_timeout));
  setsockopt(connection.number(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unread, sizeof(unread));
  Descriptor duplicate(fcntl(connection.number(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate) return metrics_.rejected.at("descriptors").Increment();
  const int number = duplicate.number();
  if (!connections_.Add(PeerAddressOf(address), std::move(duplicate), Connections::Clock::now())) {
    return;
  }
  // Told of nothing but its end.
  if (!Watch(epoll_.number(), EPOLL_CTL_ADD, number, EPOLLET)) {
    metrics_.rejected.at("descriptors").Increment();
    return connections_.Remove(number, Connections::Clock::now());
  }
  Grpc::NewConnectionParameters handed;
  handed.fd = connection.Release();
  grpc_->HandleNewConnection(&handed);
}

std::unique_ptr<ConnectionAcceptor::Grpc> AcceptedBy(
    grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  return builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
}

}  // namespace simgrad::server::service
