// Reads the trace context that a caller sends: version-trace_id-parent_id-flags, in lower-case hex.
//
// Source: W3C Trace Context, level 1. Versions after 00 may append parts.
// Threads: any.
#pragma once

#include <optional>
#include <string>

namespace simgrad::server::tracing {

struct TraceContext {
  std::string trace_id;        // 32 digits of hex, not all zero
  std::string parent_span_id;  // 16
  bool is_sampled = false;     // the caller records this trace
};

// None where `trace_parent` is empty or no trace context.
std::optional<TraceContext> TraceContextOf(const std::string& trace_parent);

}  // namespace simgrad::server::tracing
