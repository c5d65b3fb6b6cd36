#include "server/tracing/trace_context.h"

#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace simgrad::server::tracing {
namespace {

bool IsZero(const std::string& digits) {
  return digits.find_first_not_of('0') == std::string::npos;
}

bool IsHex(const std::string& digits) {
  return digits.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::optional<TraceContext> TraceContextOf(const std::string& trace_parent) {
  if (trace_parent.empty()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(trace_parent, '-');
  const size_t lengths[] = {2, 32, 16, 2};
  if (parts.size() < 4 || (parts[0] == "00" && parts.size() > 4)) return std::nullopt;
  for (size_t i = 0; i < 4; ++i) {
    if (parts[i].size() != lengths[i] || !IsHex(parts[i])) return std::nullopt;
  }
  if (parts[0] == "ff" || IsZero(parts[1]) || IsZero(parts[2])) return std::nullopt;
  constexpr uint32_t kSampled = 1;
  uint32_t flags = 0;
  if (!absl::SimpleHexAtoi(parts[3], &flags)) return std::nullopt;
  return TraceContext{parts[1], parts[2], (flags & kSampled) != 0};
}

}  // namespace simgrad::server::tracing
