#include "server/service/rpc_scope.h"

namespace simgrad::server::service {

RpcScope::RpcScope(metrics::ServerMetrics& metrics, const std::string& method)
    : metrics_(metrics.method(method)) {
  metrics_.started.Increment();
  metrics_.in_flight.Increment();
}

void RpcScope::End(const std::string& code) {
  metrics_.Handled(code);
  metrics_.handling_seconds.Observe(Seconds());
  metrics_.in_flight.Decrement();  // last: once no call is in flight, all have been counted
}

}  // namespace simgrad::server::service
