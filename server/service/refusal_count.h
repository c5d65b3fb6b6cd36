// Counts a refusal: in all, by its reason, and as one of its caller.
//
// Threads: any.
#pragma once

#include <string>

#include "server/metrics/server_metrics.h"
#include "server/scheduling/refusal.h"

namespace simgrad::server::service {

// Counts a refusal in simgrad_queue_rejected_total, and in no series of a caller.
void CountInQueue(metrics::ServerMetrics& metrics, scheduling::RefusalReason reason);

void CountRefusal(metrics::ServerMetrics& metrics, scheduling::RefusalReason reason,
                  const std::string& caller);

}  // namespace simgrad::server::service
