// The process_* families, read from /proc at each scrape; the start of the process once, as a clock that is stepped
// moves the time of the boot, from which it counts.
#pragma once

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/manifest.h"

namespace simgrad::server::metrics {

class ProcessCollector : public prometheus::Collectable {
 public:
  explicit ProcessCollector(const std::vector<Family>& manifest, std::string proc = "/proc");
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<Family> families_;
  const std::string proc_;
  const double start_seconds_;  // since the epoch
};

}  // namespace simgrad::server::metrics
