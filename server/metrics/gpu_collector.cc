#include "server/metrics/gpu_collector.h"

#include <string>
#include <utility>

namespace simgrad::server::metrics {
namespace {

using sim::cuda::DeviceUse;

// The value of one GPU in a family.
double ValueOfGpu(const std::string& family, const DeviceUse& use) {
  if (family == "simgrad_gpu_memory_used_bytes") return static_cast<double>(use.memory_used_bytes);
  if (family == "simgrad_gpu_memory_total_bytes") {
    return static_cast<double>(use.memory_total_bytes);
  }
  if (family == "simgrad_gpu_busy_seconds_total") return use.busy_seconds;
  return 1.0;  // simgrad_gpu_info
}

double Errors(const std::string& kind, const std::vector<DeviceUse>& uses) {
  uint64_t errors = 0;
  for (const DeviceUse& use : uses) {
    errors += kind == "out_of_memory" ? use.memory_errors
              : kind == "device_lost" ? use.lost_errors
                                      : use.other_errors;
  }
  return static_cast<double>(errors);
}

}  // namespace

GpuCollector::GpuCollector(const std::vector<Family>& manifest, Read read)
    : read_(std::move(read)) {
  for (const Family& family : manifest) {
    if (family.scope == Scope::kGpu) families_.push_back(family);
  }
}

std::vector<prometheus::MetricFamily> GpuCollector::Collect() const {
  const std::vector<DeviceUse> uses = read_();
  std::vector<prometheus::MetricFamily> families;
  for (const Family& declared : families_) {
    prometheus::MetricFamily family;
    family.name = declared.name;
    family.help = declared.help;
    const bool counter = declared.type == MetricType::kCounter;
    family.type = counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    for (size_t row = 0; row < declared.rows.size(); ++row) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      for (size_t label = 0; label < declared.labels.size(); ++label) {
        metric.label.push_back({declared.labels[label], declared.rows[row][label]});
      }
      const bool errors = declared.labels.front() == "kind";
      const double value = errors              ? Errors(declared.rows[row][0], uses)
                           : row < uses.size() ? ValueOfGpu(declared.name, uses[row])
                                               : 0.0;
      (counter ? metric.counter.value : metric.gauge.value) = value;
    }
    families.push_back(std::move(family));
  }
  return families;
}

}  // namespace simgrad::server::metrics
