// The spans of a request: one of kind SERVER under the span of its caller, and below it one of kind
// INTERNAL for each stage that the request came to.
//
// A request has spans only where its caller sent a trace context and records that trace. A stranger,
// whose token is wrong or missing, has none. The id of a request's span is its request id. Stages take turns, so the span of a stage lasts from when it was first
// entered to when it was last left; simgrad.stage_seconds is the time that was its own, that of the
// log line (request_log.h).
// Source: OpenTelemetry semantic conventions for RPC and for gRPC, spans of servers.
// Threads: any. Cost: some microseconds for a request that has spans.
#pragma once

#include <utility>
#include <vector>

#include "server/service/request_log.h"
#include "server/tracing/span_exporter.h"

namespace simgrad::server::service {

std::vector<tracing::Span> SpansOf(const RequestRecord& record);

// Writes the log line of a request that ended, and exports its spans unless `exporter` is null.
inline void TellOfEnd(const RequestRecord& record, tracing::SpanExporter* exporter) {
  LogRequest(record);
  if (exporter == nullptr || record.trace_parent.empty() || record.caller.empty()) return;
  std::vector<tracing::Span> spans = SpansOf(record);
  if (!spans.empty()) exporter->Add(std::move(spans));
}

}  // namespace simgrad::server::service
