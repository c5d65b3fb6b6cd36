// The HTTP endpoint: GET /metrics in the Prometheus text format.
//
// Why not prometheus-cpp's own exposer: it adds a summary of its request latencies, and a summary
// is NaN until its first observation; here no scrape ever contains NaN and there are no summaries.
// Errors: Create fails where the address cannot be bound. Threads: its own two.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

struct mg_context;
struct mg_connection;

namespace simgrad::server::metrics {

class Exposer {
 public:
  // `port` 0: a free one.
  static absl::StatusOr<std::unique_ptr<Exposer>> Create(
      const std::string& address, int port,
      std::vector<std::shared_ptr<prometheus::Collectable>> collectables);
  ~Exposer();
  Exposer(const Exposer&) = delete;
  Exposer& operator=(const Exposer&) = delete;

  int port() const { return port_; }

 private:
  Exposer() = default;
  static int Handle(mg_connection* connection, void* self);
  std::string Page() const;

  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
  mg_context* context_ = nullptr;
  std::string host_;  // where it can be reached from this machine
  int port_ = 0;
};

}  // namespace simgrad::server::metrics
