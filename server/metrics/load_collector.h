// The families of workers, memory and caches, read at each scrape.
//
// Threads: any; `read` is called from the scraper's.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/manifest.h"

namespace simgrad::server::metrics {

class LoadCollector : public prometheus::Collectable {
 public:
  // Gives a value for each series: by family and label values, in order. What is left out is 0.
  using Values = std::map<std::vector<std::string>, double>;
  using Read = std::function<Values()>;
  LoadCollector(const std::vector<Family>& manifest, Read read);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<Family> families_;
  Read read_;
};

}  // namespace simgrad::server::metrics
