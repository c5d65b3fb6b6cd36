#include "server/metrics/registry.h"

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace simgrad::server::metrics {
namespace {

constexpr char kNonFinite[] = "simgrad_nonfinite_values_total";

std::vector<std::string> KeyOf(const std::string& family, const LabelSet& labels) {
  std::vector<std::string> key = {family};
  for (const auto& [name, value] : labels) key.push_back(value);
  return key;
}

std::vector<std::string> KeyOf(const std::string& family, const std::vector<std::string>& values) {
  std::vector<std::string> key = {family};
  key.insert(key.end(), values.begin(), values.end());
  return key;
}

prometheus::Labels PrometheusLabels(const LabelSet& labels) {
  prometheus::Labels out;
  for (const auto& [name, value] : labels) out[name] = value;
  return out;
}

}  // namespace

Registry::Registry(const std::vector<Family>& manifest, const std::vector<WorldLabels>& worlds) {
  for (const Family& family : manifest) {
    const bool is_read = family.scope == Scope::kProcess || family.scope == Scope::kGpu ||
                         family.scope == Scope::kLoad;
    if (is_read) continue;
    const std::vector<LabelSet> series = SeriesOf(family, worlds);
    if (series.empty()) continue;
    if (family.type == MetricType::kCounter) {
      auto& built =
          prometheus::BuildCounter().Name(family.name).Help(family.help).Register(*registry_);
      for (const LabelSet& labels : series) {
        counters_[KeyOf(family.name, labels)] = &built.Add(PrometheusLabels(labels));
      }
    } else if (family.type == MetricType::kGauge) {
      auto& built =
          prometheus::BuildGauge().Name(family.name).Help(family.help).Register(*registry_);
      for (const LabelSet& labels : series) {
        gauges_[KeyOf(family.name, labels)] = &built.Add(PrometheusLabels(labels));
      }
    } else {
      auto& built =
          prometheus::BuildHistogram().Name(family.name).Help(family.help).Register(*registry_);
      for (const LabelSet& labels : series) {
        histograms_[KeyOf(family.name, labels)] =
            &built.Add(PrometheusLabels(labels), family.buckets);
      }
      buckets_[family.name] = family.buckets;
    }
  }
  for (const auto& [key, counter] : counters_) {
    if (key[0] != kNonFinite) continue;
    Guard& guard = guards_[{key[1], key[3]}];
    (key[2] == "nan" ? guard.nan : guard.inf) = counter;
  }
}

const Guard* Registry::GuardFor(const std::string& phase, const std::string& role) const {
  return &guards_.at({phase, role});
}

GuardedCounter Registry::Counter(const std::string& family,
                                 const std::vector<std::string>& values) const {
  return {counters_.at(KeyOf(family, values)), GuardFor("forward", "state")};
}

GuardedGauge Registry::Gauge(const std::string& family,
                             const std::vector<std::string>& values) const {
  return {gauges_.at(KeyOf(family, values)), GuardFor("forward", "state")};
}

GuardedHistogram Registry::Histogram(const std::string& family,
                                     const std::vector<std::string>& values,
                                     const std::string& phase, const std::string& role) const {
  return {histograms_.at(KeyOf(family, values)), GuardFor(phase, role)};
}

const std::vector<double>& Registry::Buckets(const std::string& family) const {
  return buckets_.at(family);
}

}  // namespace simgrad::server::metrics
