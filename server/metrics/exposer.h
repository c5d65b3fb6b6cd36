// The HTTP endpoint: GET and HEAD of /metrics in the Prometheus text format.
//
// One thread polls all connections, so that none waits for another: one that has sent a request
// is answered at once, and one that has not is closed after a time (scrape_connection.h). With
// kMaxConnections open, a new one takes the place of the one that has been silent longest. A few
// descriptors are kept in reserve, so that a scrape is answered in a process that has run out of
// them. Why not CivetWeb, nor prometheus-cpp's exposer on top of it: docs/adr/0022.
// Errors: Create fails where the address cannot be bound. Threads: its own one.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "server/descriptor.h"
#include "server/metrics/scrape_connection.h"

namespace simgrad::server::metrics {

class Exposer {
 public:
  static constexpr size_t kMaxConnections = 256;

  // `address`: as for ListenOn, both families where it is every address. `port` 0: a free one.
  static absl::StatusOr<std::unique_ptr<Exposer>> Create(
      const std::string& address, int port,
      std::vector<std::shared_ptr<prometheus::Collectable>> collectables);
  ~Exposer();
  Exposer(const Exposer&) = delete;
  Exposer& operator=(const Exposer&) = delete;

  int port() const { return port_; }

 private:
  using Clock = ScrapeConnection::Clock;
  Exposer() = default;
  void Serve();
  bool Round();  // false: it is over
  void Accept(const Descriptor& listener, Clock::time_point now);
  void Add(Descriptor socket, Clock::time_point now);
  void AnswerAll(Clock::time_point now);
  std::shared_ptr<const std::string> Page();
  void FillReserve();
  int PollTimeout(Clock::time_point now) const;

  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
  int port_ = 0;
  std::vector<Descriptor> listeners_;
  Descriptor stop_;
  // Used by the thread only:
  std::vector<std::unique_ptr<ScrapeConnection>> connections_;  // oldest first
  std::vector<pollfd> waits_;
  std::vector<Descriptor> reserve_;
  Clock::time_point accept_after_{};  // nothing can be accepted before
  std::thread thread_;
};

}  // namespace simgrad::server::metrics
