// The process_* families, read from /proc at each scrape.
#pragma once

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/manifest.h"

namespace simgrad::server::metrics {

class ProcessCollector : public prometheus::Collectable {
 public:
  explicit ProcessCollector(const std::vector<Family>& manifest);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<Family> families_;
};

}  // namespace simgrad::server::metrics
