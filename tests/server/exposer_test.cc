#include "server/metrics/exposer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/scrape_request.h"
#include "tests/eventually.h"

namespace simgrad::server::metrics {
namespace {

using std::chrono::steady_clock;

// On the loopback a socket takes up to four megabytes that nobody reads.
constexpr int kMoreThanFitsASocket = 100'000;

// A page of many series, so that it does not fit into the buffers of a socket.
class ManySeries final : public prometheus::Collectable {
 public:
  explicit ManySeries(int series) : series_(series) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family;
    family.name = "many";
    family.type = prometheus::MetricType::Gauge;
    family.metric.resize(static_cast<size_t>(series_));
    for (int i = 0; i < series_; ++i) {
      auto& metric = family.metric[static_cast<size_t>(i)];
      metric.label = {{"a_label_with_a_name_of_some_length", std::to_string(i)}};
    }
    return {family};
  }

 private:
  const int series_;
};

std::unique_ptr<Exposer> Serving(int series = 10, const std::string& address = "127.0.0.1") {
  auto exposer = Exposer::Create(address, 0, {std::make_shared<ManySeries>(series)});
  EXPECT_TRUE(exposer.ok()) << exposer.status();
  return *std::move(exposer);
}

bool Connect(const Descriptor& socket, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

// A connection that has sent `text`.
Descriptor Sent(const Exposer& exposer, const std::string& text) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  // So that little of an answer is taken by the buffer of a reader that reads nothing.
  const int small = 4096;
  setsockopt(socket.number(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  EXPECT_TRUE(Connect(socket, exposer.port()));
  EXPECT_EQ(send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
  return socket;
}

// What comes until the other side closes.
std::string Rest(const Descriptor& socket) {
  std::string text;
  char buffer[65536];
  for (ssize_t n; (n = recv(socket.number(), buffer, sizeof(buffer), 0)) > 0;)
    text.append(buffer, n);
  return text;
}

std::string Ask(const Exposer& exposer, const std::string& line) {
  return Rest(Sent(exposer, line + "\r\nHost: x\r\n\r\n"));
}

std::string Body(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

std::string ContentLength(const std::string& answer) {
  const size_t at = answer.find("Content-Length: ");
  return answer.substr(at, answer.find("\r\n", at) - at);
}

int64_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void ExpectQuickScrapes(const Exposer& exposer, const std::string& page, int scrapes,
                        std::chrono::seconds limit) {
  for (int i = 0; i < scrapes; ++i) {
    const auto start = steady_clock::now();
    ASSERT_EQ(Body(Ask(exposer, "GET /metrics HTTP/1.1")), page);
    ASSERT_LT(steady_clock::now() - start, limit);
  }
}

TEST(WhatIsAsked, IsKnownOnceTheHeadIsComplete) {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  for (size_t length = 0; length < request.size(); ++length) {
    EXPECT_EQ(WhatIsAsked(request.substr(0, length)), Asked::kMore) << length;
  }
  EXPECT_EQ(WhatIsAsked(request), Asked::kPage);
  EXPECT_EQ(WhatIsAsked("GET /metrics?name=up HTTP/1.0\r\n\r\n"), Asked::kPage);
  EXPECT_EQ(WhatIsAsked("HEAD /metrics HTTP/1.1\r\n\r\n"), Asked::kPageHead);
  EXPECT_EQ(WhatIsAsked("GET /metricsx HTTP/1.1\r\n\r\n"), Asked::kOtherPath);
  EXPECT_EQ(WhatIsAsked("GET / HTTP/1.1\r\n\r\n"), Asked::kOtherPath);
  EXPECT_EQ(WhatIsAsked("DELETE / HTTP/1.1\r\n\r\n"), Asked::kOtherMethod);
  for (const char* line : {"", "GET", "GET /metrics", "GET  /metrics HTTP/1.1", " / HTTP/1.1",
                           "PRI * HTTP/2.0", "GET /metrics HTTP/1.1 x", "GET /metrics FTP/1.1"}) {
    EXPECT_EQ(WhatIsAsked(std::string(line) + "\r\n\r\n"), Asked::kMalformed) << line;
  }
  const std::string filler(kMaxRequestHead, 'x');
  EXPECT_EQ(WhatIsAsked("GET /metrics HTTP/1.1\r\nA: " + filler), Asked::kTooLong);
  EXPECT_EQ(WhatIsAsked("GET /metrics HTTP/1.1\r\nA: " + filler + "\r\n\r\n"), Asked::kTooLong);
}

// Pods of IPv6 alone are scraped under the address that a chart gives to all.
TEST(Exposer, EveryAddressIsOneOfBothFamilies) {
  const auto answer = [](Descriptor socket, auto address) {
    if (connect(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
      return std::string();
    const std::string text = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return Rest(socket);
  };
  Descriptor v6(::socket(AF_INET6, SOCK_STREAM, 0));
  if (!v6) GTEST_SKIP() << "this machine has no IPv6";
  for (const char* every : {"0.0.0.0", "::"}) {
    SCOPED_TRACE(every);
    const auto exposer = Serving(1, every);
    sockaddr_in old{};
    old.sin_family = AF_INET;
    old.sin_port = htons(static_cast<uint16_t>(exposer->port()));
    old.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_NE(answer(Descriptor(::socket(AF_INET, SOCK_STREAM, 0)), old).find("200 OK"),
              std::string::npos);
    sockaddr_in6 young{};
    young.sin6_family = AF_INET6;
    young.sin6_port = htons(static_cast<uint16_t>(exposer->port()));
    young.sin6_addr = in6addr_loopback;
    EXPECT_NE(answer(Descriptor(::socket(AF_INET6, SOCK_STREAM, 0)), young).find("200 OK"),
              std::string::npos);
  }
}

TEST(Exposer, AnswersGetAndHeadAndRefusesTheRest) {
  const auto exposer = Serving();
  const std::string page = Ask(*exposer, "GET /metrics HTTP/1.1");
  EXPECT_EQ(page.rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
  EXPECT_NE(page.find("Connection: close\r\n"), std::string::npos);
  EXPECT_EQ(ContentLength(page), "Content-Length: " + std::to_string(Body(page).size()));
  const std::string head = Ask(*exposer, "HEAD /metrics HTTP/1.1");
  EXPECT_EQ(head.rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
  EXPECT_EQ(ContentLength(head), ContentLength(page));
  EXPECT_EQ(Body(head), "");
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get"}) {
    const std::string refused = Ask(*exposer, std::string(method) + " /metrics HTTP/1.1");
    EXPECT_EQ(refused.rfind("HTTP/1.1 405 Method Not Allowed\r\n", 0), 0u) << refused;
    EXPECT_NE(refused.find("\r\nAllow: GET, HEAD\r\n"), std::string::npos) << refused;
    EXPECT_EQ(refused.find("many"), std::string::npos);
  }
  EXPECT_EQ(Ask(*exposer, "GET /other HTTP/1.1").rfind("HTTP/1.1 404 ", 0), 0u);
  EXPECT_EQ(Ask(*exposer, "nonsense").rfind("HTTP/1.1 400 ", 0), 0u);
}

TEST(Exposer, ARefusalArrivesThoughABodyFollowsTheHead) {
  const auto exposer = Serving();
  const std::string body(1 << 16, 'x');
  const Descriptor socket =
      Sent(*exposer, "POST /metrics HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) +
                         "\r\n\r\n" + body);
  EXPECT_EQ(Rest(socket).rfind("HTTP/1.1 405 ", 0), 0u);
}

TEST(Exposer, ARequestMayComeByteByByte) {
  const auto exposer = Serving();
  const Descriptor socket = Sent(*exposer, "");
  const int no_delay = 1;
  setsockopt(socket.number(), IPPROTO_TCP, 1 /* TCP_NODELAY */, &no_delay, sizeof(no_delay));
  for (const char byte : std::string("GET /metrics HTTP/1.1\r\n\r\n")) {
    ASSERT_EQ(send(socket.number(), &byte, 1, MSG_NOSIGNAL), 1);
  }
  EXPECT_EQ(Rest(socket).rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
}

// CivetWeb with two threads took half a minute for the first of these scrapes.
TEST(Exposer, ScrapesAreAnsweredAtOnceBesideSilentAndSlowSockets) {
  const auto exposer = Serving();
  const std::string page = Body(Ask(*exposer, "GET /metrics HTTP/1.1"));
  const int64_t before = OpenDescriptors();
  const std::vector<std::string> beginnings = {"", "GET /met", "GET /metrics HTTP/1.1\r\nHost: "};
  std::vector<Descriptor> others;
  for (size_t i = 0; i < 200; ++i) {
    others.push_back(Sent(*exposer, beginnings[i % beginnings.size()]));
  }
  ExpectQuickScrapes(*exposer, page, 50, std::chrono::seconds(2));
  others.clear();
  EXPECT_TRUE(Eventually([before] { return OpenDescriptors() <= before; }));
}

TEST(Exposer, ScrapesAreAnsweredAtOnceBesideReadersThatTakeNothing) {
  const auto exposer = Serving(kMoreThanFitsASocket);
  const std::string page = Body(Ask(*exposer, "GET /metrics HTTP/1.1"));
  ASSERT_GT(page.size(), size_t{4} << 20);
  const int64_t before = OpenDescriptors();
  std::vector<Descriptor> others;
  for (int i = 0; i < 20; ++i) others.push_back(Sent(*exposer, "GET /metrics HTTP/1.1\r\n\r\n"));
  // Half a second for a page of five megabytes; a fivefold of what is promised for one of 70 kB.
  ExpectQuickScrapes(*exposer, page, 5, std::chrono::seconds(10));
  others.clear();
  EXPECT_TRUE(Eventually([before] { return OpenDescriptors() <= before; }));
}

TEST(Exposer, MoreSilentSocketsThanItKeepsDoNotShutAScraperOut) {
  const auto exposer = Serving();
  const std::string page = Body(Ask(*exposer, "GET /metrics HTTP/1.1"));
  const int64_t before = OpenDescriptors();
  std::vector<Descriptor> others;
  for (size_t i = 0; i < 2 * Exposer::kMaxConnections; ++i) others.push_back(Sent(*exposer, ""));
  ExpectQuickScrapes(*exposer, page, 5, std::chrono::seconds(2));
  // One end of each is ours.
  EXPECT_LE(OpenDescriptors() - before,
            static_cast<int64_t>(others.size() + Exposer::kMaxConnections));
}

TEST(Exposer, ClosesWhoAsksNothingAndWhoTakesNothing) {
  const auto exposer = Serving(kMoreThanFitsASocket);
  const int64_t before = OpenDescriptors();
  const Descriptor silent = Sent(*exposer, "");
  const Descriptor half = Sent(*exposer, "GET /metrics HTTP/1.1\r\n");
  const Descriptor unread = Sent(*exposer, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(Rest(silent), "");
  EXPECT_EQ(Rest(half), "");
  // Three ends of ours are left; the answer that nobody takes goes with its connection.
  EXPECT_TRUE(Eventually([before] { return OpenDescriptors() <= before + 3; }));
}

TEST(Exposer, AnswersInAProcessWithoutDescriptors) {
  const auto exposer = Serving();
  const std::string page = Body(Ask(*exposer, "GET /metrics HTTP/1.1"));
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low = {static_cast<rlim_t>(OpenDescriptors() + 16), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Descriptor> taken;
  for (;;) {
    Descriptor more(open("/dev/null", O_RDONLY));
    if (!more) break;
    taken.push_back(std::move(more));
  }
  ASSERT_TRUE(Connect(socket, exposer->port()));
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(socket.number(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  EXPECT_EQ(Body(Rest(socket)), page);
  taken.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Exposer, EndsAtOnceWithConnectionsOpen) {
  std::vector<Descriptor> others;
  {
    const auto exposer = Serving(20'000);
    for (const char* text : {"", "GET", "GET /metrics HTTP/1.1\r\n\r\n"}) {
      others.push_back(Sent(*exposer, text));
    }
  }
  EXPECT_EQ(Rest(others[0]), "");
}

TEST(Exposer, ServesOnIpv6AndSaysWhereItCannot) {
  const Descriptor v6(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (bind(v6.number(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) != 0) {
    EXPECT_FALSE(Exposer::Create("::1", 0, {}).ok());
    GTEST_SKIP() << "this machine has no ::1";
  }
  const auto exposer = Serving(10, "::1");
  loopback.sin6_port = htons(static_cast<uint16_t>(exposer->port()));
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM, 0));
  ASSERT_EQ(connect(socket.number(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)), 0);
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  ASSERT_GT(send(socket.number(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(Rest(socket).rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
}

TEST(Exposer, ATakenPortAndAForeignAddressAreErrorsThatSaySo) {
  const auto exposer = Serving();
  const absl::Status taken = Exposer::Create("127.0.0.1", exposer->port(), {}).status();
  EXPECT_NE(std::string(taken.message()).find("--metrics_port=0"), std::string::npos) << taken;
  EXPECT_FALSE(Exposer::Create("192.0.2.1", 0, {}).ok());
  EXPECT_FALSE(Exposer::Create("no.such.host.invalid", 0, {}).ok());
}

}  // namespace
}  // namespace simgrad::server::metrics
