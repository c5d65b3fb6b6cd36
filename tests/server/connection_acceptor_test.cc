// Accepting on a port of this process; what gRPC would be handed is kept by the test.

#include "server/service/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/eventually.h"

namespace simgrad::server::service {
namespace {

// Ends a connection as gRPC does: shutdown, then close.
struct Taken {
  std::mutex mutex;
  std::vector<Descriptor> connections;

  size_t size() {
    std::lock_guard lock(mutex);
    return connections.size();
  }
  void EndAll() {
    std::lock_guard lock(mutex);
    for (const Descriptor& one : connections) shutdown(one.number(), SHUT_RDWR);
    connections.clear();
  }
};

class TakesAll final : public ConnectionAcceptor::Grpc {
 public:
  explicit TakesAll(Taken& taken) : taken_(taken) {}
  void HandleNewConnection(NewConnectionParameters* handed) override {
    std::lock_guard lock(taken_.mutex);
    taken_.connections.emplace_back(handed->fd);
  }

 private:
  Taken& taken_;
};

class AcceptorTest : public testing::Test {
 protected:
  AcceptorTest() : metrics_({}, {}) {}
  ~AcceptorTest() override {
    acceptor_.reset();
    taken_.EndAll();
  }
  void Start(ConnectionLimits limits = {}) {
    auto acceptor = ConnectionAcceptor::Create("127.0.0.1", 0, limits, metrics_.connections);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    acceptor_->Start(std::make_unique<TakesAll>(taken_));
  }
  void Connect(const Descriptor& client) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(acceptor_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(client.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  static Descriptor Socket() { return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  Descriptor Connected() {
    Descriptor client = Socket();
    Connect(client);
    return client;
  }
  // Whether the other end closes within a minute.
  static bool IsClosed(const Descriptor& client) {
    pollfd ready = {client.number(), POLLIN, 0};
    char byte;
    return poll(&ready, 1, 60'000) == 1 && recv(client.number(), &byte, 1, 0) <= 0;
  }
  double Open() { return metrics_.connections.open.Value(); }

  metrics::ServerMetrics metrics_;
  Taken taken_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(AcceptorTest, HandsOverWhatIsReadyForGrpc) {
  Start();
  const Descriptor client = Connected();
  ASSERT_TRUE(Eventually([&] { return taken_.size() == 1; }));
  const int number = taken_.connections[0].number();
  EXPECT_NE(fcntl(number, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
  int undelayed = 0;
  socklen_t size = sizeof(undelayed);
  EXPECT_EQ(getsockopt(number, IPPROTO_TCP, TCP_NODELAY, &undelayed, &size), 0);
  EXPECT_NE(undelayed, 0);
  EXPECT_EQ(Open(), 1);
}

TEST_F(AcceptorTest, KnowsWhenAConnectionIsOverWhoeverEndsIt) {
  Start();
  {
    const Descriptor first = Connected(), second = Connected();
    ASSERT_TRUE(Eventually([&] { return taken_.size() == 2; }));
    EXPECT_EQ(Open(), 2);
    taken_.EndAll();
    // The duplicate that is kept here holds nothing open.
    EXPECT_TRUE(IsClosed(first));
    EXPECT_TRUE(IsClosed(second));
    EXPECT_TRUE(Eventually([&] { return Open() == 0; }));
  }
  const Descriptor resets = Connected();
  ASSERT_TRUE(Eventually([&] { return Open() == 1; }));
  const linger none = {1, 0};
  setsockopt(resets.number(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  shutdown(resets.number(), SHUT_RDWR);
  ASSERT_TRUE(Eventually([&] { return taken_.size() == 1; }));
  taken_.EndAll();  // which gRPC does when it reads the end
  EXPECT_TRUE(Eventually([&] { return Open() == 0; }));
}

TEST_F(AcceptorTest, EndsAConnectionWhosePeerTakesNothing) {
  ConnectionLimits limits;
  limits.unread_timeout = absl::Seconds(1);
  Start(limits);
  const Descriptor silent = Connected(), idle = Connected();
  ASSERT_TRUE(Eventually([&] { return taken_.size() == 2; }));
  const std::string text(1 << 20, 'x');
  const int number = taken_.connections[0].number();
  while (send(number, text.data(), text.size(), MSG_NOSIGNAL) > 0) continue;
  EXPECT_TRUE(Eventually([&] { return Open() == 1; }));
}

TEST_F(AcceptorTest, ClosesWhatExceedsALimitAtOnce) {
  ConnectionLimits limits;
  limits.total = 2;
  Start(limits);
  const Descriptor first = Connected(), second = Connected();
  ASSERT_TRUE(Eventually([&] { return taken_.size() == 2; }));
  const Descriptor third = Connected();
  EXPECT_TRUE(IsClosed(third));
  EXPECT_EQ(taken_.size(), 2u);
}

TEST_F(AcceptorTest, OutlivesALackOfDescriptors) {
  Start();
  std::vector<Descriptor> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(Socket());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // All that this process may have is taken.
  std::vector<Descriptor> others;
  const rlimit few = {static_cast<rlim_t>(clients.back().number() + 32), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (;;) {
    Descriptor one(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one) break;
    others.push_back(std::move(one));
  }
  for (const Descriptor& client : clients) Connect(client);
  for (const Descriptor& client : clients) EXPECT_TRUE(IsClosed(client));
  EXPECT_EQ(taken_.size(), 0u);
  others.clear();
  const Descriptor client = Connected();
  EXPECT_TRUE(Eventually([&] { return taken_.size() == 1; }));
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(AcceptorTest, ClosesItsPortWhenItStops) {
  Start();
  const int port = acceptor_->port();
  const Descriptor client = Connected();
  ASSERT_TRUE(Eventually([&] { return taken_.size() == 1; }));
  acceptor_->Stop();
  EXPECT_TRUE(ListenOn("127.0.0.1", port).ok());
  // What was accepted stays.
  pollfd ready = {client.number(), POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
}

TEST_F(AcceptorTest, TellsThatAPortIsTaken) {
  Start();
  const auto second =
      ConnectionAcceptor::Create("127.0.0.1", acceptor_->port(), {}, metrics_.connections);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace simgrad::server::service
