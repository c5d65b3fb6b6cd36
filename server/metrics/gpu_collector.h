// The gpu and CUDA families, read from the devices at each scrape.
//
// Threads: any; `read` is called from the scraper's.
#pragma once

#include <functional>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/manifest.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::server::metrics {

class GpuCollector : public prometheus::Collectable {
 public:
  // `read` gives the use of ServerLabels::gpus, in their order.
  using Read = std::function<std::vector<sim::cuda::DeviceUse>()>;
  GpuCollector(const std::vector<Family>& manifest, Read read);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<Family> families_;
  Read read_;
};

}  // namespace simgrad::server::metrics
