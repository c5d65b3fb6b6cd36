#include "server/service/rpc_scope.h"

#include "absl/time/clock.h"

namespace simgrad::server::service {

RpcScope::RpcScope(metrics::ServerMetrics& metrics, const std::string& method)
    : metrics_(metrics.method(method)), start_(absl::Now()) {
  metrics_.started.Increment();
  metrics_.in_flight.Increment();
}

void RpcScope::End(const std::string& code) {
  metrics_.Handled(code);
  metrics_.handling_seconds.Observe(Seconds());
  metrics_.in_flight.Decrement();  // last: once no call is in flight, all have been counted
}

double RpcScope::Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

}  // namespace simgrad::server::service
