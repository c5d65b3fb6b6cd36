// The limits and counts of connections, on sockets of this process; no gRPC.

#include "server/service/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "server/listening_sockets.h"

namespace simgrad::server::service {
namespace {

using Clock = Connections::Clock;
constexpr Clock::time_point kStart = Clock::time_point() + std::chrono::hours(1);

sockaddr_storage V4(const char* address, uint16_t port) {
  sockaddr_storage storage{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  inet_pton(AF_INET, address, &v4.sin_addr);
  return storage;
}

sockaddr_storage V6(const char* address, uint16_t port) {
  sockaddr_storage storage{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  inet_pton(AF_INET6, address, &v6.sin6_addr);
  return storage;
}

// Two ends of a TCP connection.
struct Pair {
  Descriptor client, server;
};
Pair Connect() {
  auto listening = ListenOn("127.0.0.1", 0);
  EXPECT_TRUE(listening.ok()) << listening.status();
  Pair pair;
  pair.client = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_storage to = V4("127.0.0.1", static_cast<uint16_t>(listening->port));
  EXPECT_EQ(
      connect(pair.client.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(sockaddr_in)),
      0);
  pollfd ready = {listening->sockets[0].number(), POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, -1), 1);
  pair.server = Descriptor(accept(listening->sockets[0].number(), nullptr, nullptr));
  return pair;
}

class ConnectionsTest : public testing::Test {
 protected:
  ConnectionsTest() : metrics_({}, {}) {}
  double Rejected(const std::string& reason) {
    for (const auto& page : metrics_.collectables()) {
      for (const auto& family : page->Collect()) {
        if (family.name != "simgrad_connections_rejected_total") continue;
        for (const auto& metric : family.metric) {
          if (metric.label[0].value == reason) return metric.counter.value;
        }
      }
    }
    ADD_FAILURE() << "no series for " << reason;
    return -1;
  }
  double Open() { return metrics_.connections.open.Value(); }
  PeerAddress Peer(const char* address, uint16_t port) { return PeerAddressOf(V4(address, port)); }
  // Something to own.
  static Descriptor Any() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  metrics::ServerMetrics metrics_;
};

TEST(PeerAddress, IsNamedAsGrpcNamesIt) {
  EXPECT_EQ(PeerAddressOf(V4("127.0.0.1", 80)).name, "ipv4:127.0.0.1:80");
  EXPECT_EQ(PeerAddressOf(V6("::1", 80)).name, "ipv6:%5B::1%5D:80");
  EXPECT_EQ(PeerAddressOf(V6("::ffff:10.1.2.3", 80)).name, "ipv4:10.1.2.3:80");
}

TEST(PeerAddress, CountsAnIpv6NetworkAsOneHost) {
  const std::string host = PeerAddressOf(V6("2001:db8:1:2:3:4:5:6", 80)).host;
  EXPECT_EQ(host, PeerAddressOf(V6("2001:db8:1:2:ffff::1", 90)).host);
  EXPECT_NE(host, PeerAddressOf(V6("2001:db8:1:3:3:4:5:6", 80)).host);
  EXPECT_EQ(PeerAddressOf(V4("10.1.2.3", 1)).host, PeerAddressOf(V6("::ffff:10.1.2.3", 2)).host);
  EXPECT_NE(PeerAddressOf(V4("10.1.2.3", 1)).host, PeerAddressOf(V4("10.1.2.4", 1)).host);
}

TEST_F(ConnectionsTest, AreLimitedInAllAndPerHost) {
  ConnectionLimits limits;
  limits.total = 3;
  limits.per_host = 2;
  {
    Connections connections(limits, metrics_.connections);
    EXPECT_TRUE(connections.Add(Peer("10.0.0.1", 1), Any(), kStart));
    Descriptor second = Any();
    const int number = second.number();
    EXPECT_TRUE(connections.Add(Peer("10.0.0.1", 2), std::move(second), kStart));
    EXPECT_FALSE(connections.Add(Peer("10.0.0.1", 3), Any(), kStart));
    EXPECT_EQ(Rejected("peer"), 1);
    EXPECT_TRUE(connections.Add(Peer("10.0.0.2", 1), Any(), kStart));
    EXPECT_FALSE(connections.Add(Peer("10.0.0.3", 1), Any(), kStart));
    EXPECT_EQ(Rejected("total"), 1);
    EXPECT_EQ(Open(), 3);
    connections.Remove(number, kStart);
    EXPECT_EQ(Open(), 2);
    EXPECT_TRUE(connections.Add(Peer("10.0.0.1", 4), Any(), kStart));
  }
  EXPECT_EQ(Open(), 0);
}

// Whether the other end is told of an end within a minute.
bool IsEnded(const Descriptor& end) {
  pollfd ready = {end.number(), POLLIN, 0};
  char byte;
  return poll(&ready, 1, 60'000) == 1 && recv(end.number(), &byte, 1, 0) <= 0;
}
bool IsOpen(const Descriptor& end) {
  pollfd ready = {end.number(), POLLIN, 0};
  return poll(&ready, 1, 0) == 0;
}

class ResetsTest : public ConnectionsTest {
 protected:
  ResetsTest() : connections_({}, metrics_.connections) {
    connections_.Add(peer_, Descriptor(dup(pair_.server.number())), kStart);
  }
  void End(int calls, bool early, Clock::time_point when) {
    for (int i = 0; i < calls; ++i) {
      connections_.CallBegan(peer_.name);
      connections_.CallEnded(peer_.name, early, when);
    }
  }
  Pair pair_ = Connect();
  PeerAddress peer_ = PeerAddressOf(V4("10.0.0.1", 1));
  Connections connections_;
};

TEST_F(ResetsTest, CutAPeerThatCancelsInNumbers) {
  End(499, true, kStart);
  EXPECT_TRUE(IsOpen(pair_.client));
  End(1, true, kStart);
  EXPECT_TRUE(IsEnded(pair_.client));
  EXPECT_EQ(Rejected("resets"), 1);
  End(500, true, kStart);
  EXPECT_EQ(Rejected("resets"), 1);  // once
}

TEST_F(ResetsTest, LeaveACallerThatCancelsTwoHundredCallsWhenItEnds) {
  End(200, true, kStart);
  EXPECT_TRUE(IsOpen(pair_.client));
  EXPECT_EQ(Rejected("resets"), 0);
}

TEST_F(ResetsTest, LeaveACallerThatCancelsFewerThanHalfOfItsCalls) {
  for (int i = 0; i < 5000; ++i) {
    End(11, false, kStart);
    End(10, true, kStart);
  }
  EXPECT_TRUE(IsOpen(pair_.client));
  EXPECT_EQ(Rejected("resets"), 0);
}

TEST_F(ResetsTest, LeaveACallerThatCancelsFortyCallsASecond) {
  for (int second = 0; second < 600; ++second) {
    End(40, true, kStart + std::chrono::seconds(second));
  }
  EXPECT_TRUE(IsOpen(pair_.client));
}

TEST_F(ResetsTest, AreFewForAHostThatComesBackAfterACut) {
  End(500, true, kStart);
  const Pair again = Connect();
  const PeerAddress peer = PeerAddressOf(V4("10.0.0.1", 2));
  connections_.Add(peer, Descriptor(dup(again.server.number())), kStart);
  for (int i = 0; i < 50; ++i) connections_.CallEnded(peer.name, true, kStart);
  EXPECT_TRUE(IsEnded(again.client));
  const Pair other = Connect();
  const PeerAddress neighbour = PeerAddressOf(V4("10.0.0.2", 1));
  connections_.Add(neighbour, Descriptor(dup(other.server.number())), kStart);
  for (int i = 0; i < 50; ++i) connections_.CallEnded(neighbour.name, true, kStart);
  EXPECT_TRUE(IsOpen(other.client));
}

TEST_F(ResetsTest, ComeOfCallsOfWhichOneIsTheFirst) {
  EXPECT_TRUE(connections_.CallBegan(peer_.name));
  EXPECT_FALSE(connections_.CallBegan(peer_.name));
  EXPECT_FALSE(connections_.CallBegan("ipv4:10.9.9.9:1"));  // nobody's
}

TEST_F(ResetsTest, OfAPeerThatIsGoneHarmNobody) {
  connections_.CallBegan("ipv4:10.9.9.9:1");
  for (int i = 0; i < 1000; ++i) connections_.CallEnded("ipv4:10.9.9.9:1", true, kStart);
  EXPECT_TRUE(IsOpen(pair_.client));
  EXPECT_EQ(connections_.BytesRead("ipv4:10.9.9.9:1"), 0);
}

TEST_F(ResetsTest, AreNotCountedAgainstAPortThatCameAgain) {
  // The same peer, before its first connection is noticed to be over.
  const Pair again = Connect();
  const Descriptor first(dup(pair_.server.number()));
  Descriptor second(dup(again.server.number()));
  connections_.Add(peer_, std::move(second), kStart);
  EXPECT_EQ(Open(), 2);
  End(500, true, kStart);
  EXPECT_TRUE(IsEnded(again.client));
  EXPECT_TRUE(IsOpen(pair_.client));
}

TEST_F(ResetsTest, BytesReadLeaveOutWhatWaits) {
  const std::string text(1000, 'x');
  ASSERT_EQ(send(pair_.client.number(), text.data(), text.size(), 0), 1000);
  std::string taken(600, ' ');
  ASSERT_EQ(recv(pair_.server.number(), taken.data(), taken.size(), MSG_WAITALL), 600);
  const int64_t read = connections_.BytesRead(peer_.name);
  EXPECT_GE(read, 600 - 400);  // TCP may not have counted what comes within the same moment
  EXPECT_LE(read, 600);
}

TEST(ListeningSockets, SayThatAPortIsTaken) {
  const auto first = ListenOn("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->port, 0);
  const auto second = ListenOn("127.0.0.1", first->port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(ListeningSockets, EveryAddressIsOfBothFamilies) {
  const auto listening = ListenOn("0.0.0.0", 0);
  ASSERT_TRUE(listening.ok()) << listening.status();
  const Descriptor client(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_storage to = V4("127.0.0.1", static_cast<uint16_t>(listening->port));
  EXPECT_EQ(connect(client.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(sockaddr_in)),
            0);
}

TEST(ListeningSockets, AnAddressThatIsNotOursIsAnError) {
  EXPECT_EQ(ListenOn("203.0.113.7", 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ListenOn("no such address", 0).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace simgrad::server::service
