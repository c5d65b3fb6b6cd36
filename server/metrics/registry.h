// All series of the manifest, created at once; handles are taken from it at start and kept.
//
// Threads: complete after construction; the handles may be used from any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/registry.h"
#include "server/metrics/guarded.h"
#include "server/metrics/manifest.h"
#include "server/metrics/series.h"

namespace simgrad::server::metrics {

class Registry {
 public:
  Registry(const std::vector<Family>& manifest, const std::vector<WorldLabels>& worlds);

  // `values`: of all labels in order (world and site first). The series must be in the manifest.
  GuardedCounter Counter(const std::string& family,
                         const std::vector<std::string>& values = {}) const;
  GuardedGauge Gauge(const std::string& family, const std::vector<std::string>& values = {}) const;
  // Refused observations are counted under `phase` and `role`.
  GuardedHistogram Histogram(const std::string& family, const std::vector<std::string>& values = {},
                             const std::string& phase = "forward",
                             const std::string& role = "state") const;
  // Bucket bounds of a histogram family.
  const std::vector<double>& Buckets(const std::string& family) const;

  std::shared_ptr<prometheus::Registry> collectable() const { return registry_; }

 private:
  const Guard* GuardFor(const std::string& phase, const std::string& role) const;

  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::map<std::vector<std::string>, prometheus::Counter*> counters_;  // family, values...
  std::map<std::vector<std::string>, prometheus::Gauge*> gauges_;
  std::map<std::vector<std::string>, prometheus::Histogram*> histograms_;
  std::map<std::string, std::vector<double>> buckets_;
  std::map<std::vector<std::string>, Guard> guards_;  // phase, role
};

}  // namespace simgrad::server::metrics
