// Workers, memory and caches of a server as they are now, for a scrape.
//
// Threads: any.
#pragma once

#include <vector>

#include "server/metrics/load_collector.h"
#include "server/scheduling/scheduler.h"
#include "server/service/device.h"
#include "server/service/simgrad_service.h"
#include "sim/backend/cuda/device.h"

namespace simgrad::server::service {

// The use of each GPU.
std::vector<sim::cuda::DeviceUse> UseOf(const Device& device);

metrics::LoadCollector::Values LoadOf(const scheduling::Scheduler& scheduler,
                                      const SimgradService& service, const Device& device);

}  // namespace simgrad::server::service
