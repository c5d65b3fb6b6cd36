#include "server/metrics/load_collector.h"

#include <utility>

namespace simgrad::server::metrics {

LoadCollector::LoadCollector(const std::vector<Family>& manifest, Read read)
    : read_(std::move(read)) {
  for (const Family& family : manifest) {
    if (family.scope == Scope::kLoad) families_.push_back(family);
  }
}

std::vector<prometheus::MetricFamily> LoadCollector::Collect() const {
  const Values values = read_();
  std::vector<prometheus::MetricFamily> families;
  for (const Family& declared : families_) {
    prometheus::MetricFamily family;
    family.name = declared.name;
    family.help = declared.help;
    family.type = prometheus::MetricType::Gauge;
    for (const std::vector<std::string>& row : declared.rows) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      std::vector<std::string> key = {declared.name};
      for (size_t label = 0; label < row.size(); ++label) {
        metric.label.push_back({declared.labels[label], row[label]});
        key.push_back(row[label]);
      }
      const auto found = values.find(key);
      metric.gauge.value = found == values.end() ? 0.0 : found->second;
    }
    families.push_back(std::move(family));
  }
  return families;
}

}  // namespace simgrad::server::metrics
