// Hands spans to a collector that speaks OTLP over gRPC.
//
// A collector that is away is waited for until the deadline of the call. One that answers UNAVAILABLE
// is asked again, at most four times. Source: OpenTelemetry protocol, OTLP/gRPC.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/tracing/otlp.pb.h"

namespace simgrad::server::tracing {

class Collector {
 public:
  virtual ~Collector() = default;
  // Returns how many of the spans the collector refused, and why.
  // Errors: the status of the call; UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED: no answer came.
  virtual absl::StatusOr<PartialSuccess> Export(const ExportRequest& request,
                                                absl::Time deadline) = 0;
  // From now on every Export fails at once, the one in progress too. Threads: any.
  virtual void Stop() = 0;
};

// `endpoint`: HOST:PORT. `ca`: PEM text with the CA of the collector's certificate; empty: plaintext.
// Connects with the first Export.
std::unique_ptr<Collector> GrpcCollector(const std::string& endpoint, const std::string& ca);

}  // namespace simgrad::server::tracing
