#include "server/service/connections.h"

#include <linux/tcp.h>  // the C library's tcp_info ends before the count of bytes
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/request_log.h"

namespace simgrad::server::service {
namespace {

// tcp_info::tcpi_state, as the kernel numbers them.
enum TcpState : uint8_t { kFinWait1 = 4, kFinWait2 = 5, kClosed = 7, kClosing = 11 };

std::optional<tcp_info> InfoOf(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info;
}

// Ends both directions at once. What the peer has still to send is refused, not waited for.
void ShutDown(int socket) {
  const linger none = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  shutdown(socket, SHUT_RDWR);
}

}  // namespace

Connections::~Connections() {
  for (size_t i = 0; i < connections_.size(); ++i) metrics_.open.Decrement();
}

bool Connections::Add(const PeerAddress& peer, Descriptor duplicate, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(connections_.size()) >= limits_.total) {
    metrics_.rejected.at("total").Increment();
    return false;
  }
  Host& host = hosts_[peer.host];
  if (host.connections >= limits_.per_host) {
    metrics_.rejected.at("peer").Increment();
    return false;
  }
  ++host.connections;
  const int number = duplicate.number();
  by_peer_[peer.name] = number;
  connections_[number] = {peer, std::move(duplicate), now, false, false, {}};
  metrics_.open.Increment();
  return true;
}

// gRPC closed it, not the peer, before anything was served, and within the time that a handshake
// has; what it closes for other reasons has lasted longer.
bool Connections::EndedByHandshake(const Connection& connection, Clock::time_point now) const {
  if (connection.served || connection.cut) return false;
  const absl::Duration age = absl::FromChrono(now - connection.since);
  if (age > limits_.handshake_timeout + absl::Seconds(2)) return false;
  const auto info = InfoOf(connection.duplicate.number());
  if (!info) return false;
  switch (info->tcpi_state) {
    case kFinWait1:
    case kFinWait2:
    case kClosing:
      return true;
    case kClosed:  // the peer has gone too, or was first
      return age >= limits_.handshake_timeout;
    default:
      return false;
  }
}

void Connections::Remove(int duplicate, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(duplicate);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  if (EndedByHandshake(connection, now)) metrics_.rejected.at("handshake").Increment();
  const auto name = by_peer_.find(connection.peer.name);
  // The peer may have come again from the same port.
  if (name != by_peer_.end() && name->second == duplicate) by_peer_.erase(name);
  --hosts_[connection.peer.host].connections;
  connections_.erase(found);
  metrics_.open.Decrement();
  ForgetQuietHosts(now);
}

void Connections::ForgetQuietHosts(Clock::time_point now) {
  // Not at each end: hosts come and go.
  if (hosts_.size() <= 2 * connections_.size() + 64) return;
  std::erase_if(hosts_, [now](const auto& host) {
    return host.second.connections == 0 && host.second.resets.IsOver(now);
  });
}

Connections::Connection* Connections::Find(const std::string& peer) {
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? nullptr : &connections_.at(found->second);
}

bool Connections::CallBegan(const std::string& peer) {
  std::lock_guard lock(mutex_);
  Connection* const connection = Find(peer);
  return connection != nullptr && !std::exchange(connection->served, true);
}

void Connections::CallEnded(const std::string& peer, bool early_cancelled, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  Connection* const connection = Find(peer);
  if (connection == nullptr || connection->cut) return;
  Host& host = hosts_[connection->peer.host];
  connection->resets.Count(early_cancelled, now);
  host.resets.Count(early_cancelled, now);
  if (!early_cancelled || host.resets.early() < limits_.resets.most_of_address ||
      connection->resets.early() < limits_.resets.least_of_connection ||
      !connection->resets.MostlyEarly()) {
    return;
  }
  connection->cut = true;
  metrics_.rejected.at("resets").Increment();
  LogNote(LogLevel::kWarning,
          absl::StrCat("a connection of ", connection->peer.host, " was cut: it cancelled ",
                       connection->resets.early(), " calls before their answers began"));
  ShutDown(connection->duplicate.number());
}

void Connections::Cut(const std::string& peer) {
  std::lock_guard lock(mutex_);
  Connection* const connection = Find(peer);
  if (connection == nullptr) return;
  connection->cut = true;
  ShutDown(connection->duplicate.number());
}

void Connections::CutAll() {
  std::lock_guard lock(mutex_);
  for (auto& [number, connection] : connections_) {
    connection.cut = true;
    ShutDown(number);
  }
}

int64_t Connections::BytesRead(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return 0;
  const auto info = InfoOf(found->second);
  int waiting = 0;
  if (!info || ioctl(found->second, FIONREAD, &waiting) != 0) return 0;
  return static_cast<int64_t>(info->tcpi_bytes_received) - waiting;
}

}  // namespace simgrad::server::service
