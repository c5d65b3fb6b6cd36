#include "server/service/server_load.h"

#include <cstddef>
#include <utility>

namespace simgrad::server::service {

std::vector<sim::cuda::DeviceUse> UseOf(const Device& device) {
  std::vector<sim::cuda::DeviceUse> uses;
  for (const Gpu& gpu : device.gpus) uses.push_back(gpu.device->Use());
  return uses;
}

metrics::LoadCollector::Values LoadOf(const scheduling::Scheduler& scheduler,
                                      const SimgradService& service, const Device& device) {
  metrics::LoadCollector::Values values;
  const auto add = [&values](const char* family, const char* label, int64_t value) {
    values[{family, label}] = static_cast<double>(value);
  };
  values[{"simgrad_queue_requests"}] = static_cast<double>(scheduler.arrived_waiting());
  values[{"simgrad_queue_capacity_requests"}] = static_cast<double>(scheduler.capacity());
  for (const auto lane : {scheduling::Lane::kSmall, scheduling::Lane::kLarge}) {
    const char* const name = lane == scheduling::Lane::kSmall ? "small" : "large";
    const scheduling::WorkQueue& queue = scheduler.lane(lane);
    add("simgrad_workers", name, queue.workers());
    add("simgrad_workers_busy", name, queue.busy());
  }
  for (size_t use = 0; use < scheduling::kMemoryUseNames.size(); ++use) {
    add("simgrad_memory_reserved_bytes", scheduling::kMemoryUseNames[use],
        scheduler.memory().used(static_cast<scheduling::MemoryUse>(use)));
  }
  const std::pair<const char*, conversion::ProgramCache::Use> caches[] = {
      {"worlds", service.cache().worlds()}, {"programs", service.cache().programs()}};
  const Contents::Use contents = service.contents().use();
  add("simgrad_cache_bytes", "contents", contents.bytes);
  add("simgrad_cache_entries", "contents", contents.entries);
  for (const auto& [name, use] : caches) {
    add("simgrad_cache_bytes", name, use.bytes);
    add("simgrad_cache_entries", name, use.entries);
  }
  add("simgrad_tape_bytes", "host", service.kept().use().bytes);
  add("simgrad_tape_limit_bytes", "host", service.kept().max_bytes());
  if (device.host != nullptr) {
    const sim::HeldCode held = device.host->held();
    add("simgrad_cache_bytes", "plans", held.plan_bytes);
    add("simgrad_cache_entries", "plans", held.plans);
    add("simgrad_cache_bytes", "kernels", held.kernel_bytes);
    add("simgrad_cache_entries", "kernels", held.kernels);
  }
  values[{"simgrad_memory_limit_bytes"}] = static_cast<double>(scheduler.memory().limit());
  return values;
}

}  // namespace simgrad::server::service
