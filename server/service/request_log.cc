#include "server/service/request_log.h"

#include <atomic>
#include <cmath>
#include <random>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "precision/hash.h"
#include "server/service/log_limit.h"
#include "server/service/log_writer.h"

namespace simgrad::server::service {
namespace {

constexpr size_t kMaxMessage = 300;

// `value` in at least so many decimal digits.
void AppendDigits(int64_t value, size_t digits, std::string& out) {
  const absl::AlphaNum number(value);
  if (number.size() < digits) out.append(digits - number.size(), '0');
  out.append(number.data(), number.size());
}

// A JSON object, field by field, without formats to interpret: a line is written for every request.
// Bytes outside ASCII are written as \u00XX: what a caller wrote need not be UTF-8, and a log line
// must be JSON whatever it is.
class JsonLine {
 public:
  JsonLine() { line_.reserve(512); }

  JsonLine& Text(std::string_view name, std::string_view value) {
    Name(name);
    line_ += '"';
    for (const unsigned char c : value) {
      if (c == '"' || c == '\\') {
        line_ += '\\';
        line_ += static_cast<char>(c);
      } else if (c >= 0x20 && c < 0x7F) {
        line_ += static_cast<char>(c);
      } else {
        absl::StrAppend(&line_, "\\u", absl::Hex(c, absl::kZeroPad4));
      }
    }
    line_ += '"';
    return *this;
  }
  JsonLine& Integer(std::string_view name, int64_t value) {
    Name(name);
    AppendDigits(value, 1, line_);
    return *this;
  }
  JsonLine& Milliseconds(std::string_view stage, double seconds) {
    Name(stage, "_ms");
    const int64_t microseconds = std::llround(seconds * 1e6);
    if (microseconds < 0) line_ += '-';
    AppendDigits(std::abs(microseconds) / 1000, 1, line_);
    line_ += '.';
    AppendDigits(std::abs(microseconds) % 1000, 3, line_);
    return *this;
  }
  JsonLine& Time(std::string_view name, absl::Time time) {
    const absl::TimeZone::CivilInfo utc = absl::UTCTimeZone().At(time);
    Name(name);
    line_ += '"';
    AppendDigits(utc.cs.year(), 4, line_);
    const auto two = [this](char before, int number) {
      line_ += before;
      AppendDigits(number, 2, line_);
    };
    two('-', utc.cs.month());
    two('-', utc.cs.day());
    two('T', utc.cs.hour());
    two(':', utc.cs.minute());
    two(':', utc.cs.second());
    line_ += '.';
    AppendDigits(absl::ToInt64Milliseconds(utc.subsecond), 3, line_);
    line_ += "Z\"";
    return *this;
  }
  std::string Ended() {
    line_ += '}';
    return std::move(line_);
  }

 private:
  void Name(std::string_view name, std::string_view ending = "") {
    line_ += line_.empty() ? "{\"" : ",\"";
    line_ += name;
    line_ += ending;
    line_ += "\":";
  }
  std::string line_;
};

JsonLine Begin(std::string_view level, std::string_view event) {
  JsonLine line;
  line.Time("time", absl::Now()).Text("level", level).Text("event", event);
  return line;
}

// version-trace_id-parent_id-flags, in lower-case hex, the ids not all zero (W3C Trace Context).
void AddTrace(const std::string& trace_parent, JsonLine& line) {
  if (trace_parent.empty()) return;
  const std::vector<std::string> parts = absl::StrSplit(trace_parent, '-');
  const size_t lengths[] = {2, 32, 16, 2};
  // Later versions may append parts.
  if (parts.size() < 4 || (parts[0] == "00" && parts.size() > 4)) return;
  for (size_t i = 0; i < 4; ++i) {
    const bool hex = parts[i].find_first_not_of("0123456789abcdef") == std::string::npos;
    if (parts[i].size() != lengths[i] || !hex) return;
  }
  const auto zero = [](const std::string& id) {
    return id.find_first_not_of('0') == std::string::npos;
  };
  if (parts[0] == "ff" || zero(parts[1]) || zero(parts[2])) return;
  line.Text("trace_id", parts[1]).Text("parent_span_id", parts[2]);
}

// A peer that opens calls only to cancel them must not write to the log at will, nor one that comes
// again at once whenever it is refused.
struct LineLimits {
  static constexpr int64_t kPerSecond = 200;
  LogLimit cancelled{kPerSecond};
  LogLimit refused{kPerSecond};

  static LineLimits& Get() {
    static auto* const limits = new LineLimits();
    return *limits;
  }
  // How many lines were left out in the seconds that are over at `now`.
  void Tell(absl::Time now) {
    Tell(cancelled.TakeLeftOut(now), "cancelled");
    Tell(refused.TakeLeftOut(now), "refused");
  }

 private:
  static void Tell(int64_t left_out, absl::string_view what) {
    if (left_out == 0) return;
    LogNote(LogLevel::kInfo,
            absl::StrCat(left_out, " more calls were ", what, "; their lines are left out"));
  }
};

}  // namespace

std::string LogLine(const RequestRecord& record) {
  const bool failed = record.outcome == "Internal";
  JsonLine line = Begin(failed ? "error" : "info", "request");
  line.Text("request_id", record.request_id);
  AddTrace(record.trace_parent, line);
  line.Text("method", record.method);
  if (!record.caller.empty()) line.Text("caller", record.caller);
  if (!record.world.empty()) {
    line.Text("world", record.world)
        .Integer("instances", record.instances)
        .Integer("steps", record.steps);
  }
  line.Text("code", record.outcome);
  double claimed = 0;
  for (size_t stage = 0; stage < record.seconds.size(); ++stage) {
    if (!record.seconds[stage]) continue;
    line.Milliseconds(kStageNames[stage], *record.seconds[stage]);
    claimed += *record.seconds[stage];
  }
  line.Milliseconds("other", record.total_seconds - claimed)
      .Milliseconds("total", record.total_seconds);
  if (!record.message.empty()) line.Text("message", record.message.substr(0, kMaxMessage));
  return line.Ended();
}

void LogRequest(const RequestRecord& record) {
  LineLimits& limits = LineLimits::Get();
  const absl::Time now = absl::Now();
  limits.Tell(now);
  if (record.outcome == "Canceled" && !limits.cancelled.Admits(now)) return;
  if (record.is_refusal && !limits.refused.Admits(now)) return;
  LogWriter::Get().Add(LogLine(record));
}

void LogNote(LogLevel level, const std::string& text) {
  constexpr const char* kNames[] = {"info", "warning", "error"};
  const char* const name = kNames[static_cast<size_t>(level)];
  LogWriter::Get().Add(Begin(name, "note").Text("message", text).Ended());
}

void FlushLog(absl::Duration timeout) {
  LineLimits::Get().Tell(absl::InfiniteFuture());
  LogWriter::Get().Flush(timeout);
}

std::string NewRequestId() {
  static const uint64_t start = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }();
  static std::atomic<uint64_t> count{0};
  // A bijection of a counter from a random start: distinct within the process.
  return absl::StrCat(
      absl::Hex(precision::SplitMix64(start + count.fetch_add(1)), absl::kZeroPad16));
}

}  // namespace simgrad::server::service
