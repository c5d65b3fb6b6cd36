#include "server/service/refusal_count.h"

#include "server/service/error_status.h"

namespace simgrad::server::service {

void CountInQueue(metrics::ServerMetrics& metrics, scheduling::RefusalReason reason) {
  metrics.queue_rejected.at(RefusalLabel(reason)).Increment();
}

void CountRefusal(metrics::ServerMetrics& metrics, scheduling::RefusalReason reason,
                  const std::string& caller) {
  using scheduling::RefusalReason;
  CountInQueue(metrics, reason);
  const auto count = [&](server::metrics::Rejected why) {
    metrics.caller(caller).rejected[static_cast<size_t>(why)].Increment();
  };
  switch (reason) {
    case RefusalReason::kFull:
      return count(server::metrics::Rejected::kFull);
    case RefusalReason::kMemory:
    case RefusalReason::kTooLarge:
      return count(server::metrics::Rejected::kMemory);
    case RefusalReason::kInFlight:
      return count(server::metrics::Rejected::kRequests);
    case RefusalReason::kRate:
      return count(server::metrics::Rejected::kRate);
    case RefusalReason::kShare:
      return count(server::metrics::Rejected::kShare);
    case RefusalReason::kDeadline:
    case RefusalReason::kDraining:
      return;  // nothing of the caller's doing
    case RefusalReason::kLength:
      return;  // no limit of the caller's own
  }
}

}  // namespace simgrad::server::service
