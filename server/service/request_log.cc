#include "server/service/request_log.h"

#include <atomic>
#include <cstdio>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "precision/hash.h"

namespace simgrad::server::service {
namespace {

constexpr size_t kMaxMessage = 300;

void Write(const std::string& line) {
  const std::string stamped = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ", line, "\n");
  // One write per line, so that lines of several threads do not mix.
  std::fwrite(stamped.data(), 1, stamped.size(), stderr);
}

}  // namespace

std::string LogLine(const RequestRecord& record) {
  std::string line = absl::StrCat("request=", record.request_id, " method=", record.method);
  if (!record.world.empty()) {
    absl::StrAppend(&line, " world=", record.world, " instances=", record.instances,
                    " steps=", record.steps);
  }
  absl::StrAppend(&line, " code=", record.outcome);
  for (const auto& [stage, seconds] : record.seconds) {
    absl::StrAppend(&line, absl::StrFormat(" %s_ms=%.3f", stage, seconds * 1e3));
  }
  if (!record.message.empty()) {
    absl::StrAppend(&line, " message=\"", absl::CHexEscape(record.message.substr(0, kMaxMessage)),
                    "\"");
  }
  return line;
}

void LogRequest(const RequestRecord& record) { Write(LogLine(record)); }

void LogNote(const std::string& text) { Write(text); }

std::string NewRequestId() {
  static const uint64_t start = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }();
  static std::atomic<uint64_t> count{0};
  // A bijection of a counter from a random start: distinct within the process.
  return absl::StrFormat("%016x", precision::SplitMix64(start + count.fetch_add(1)));
}

}  // namespace simgrad::server::service
