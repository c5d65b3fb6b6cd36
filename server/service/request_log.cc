#include "server/service/request_log.h"

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "precision/hash.h"
#include "server/scheduling/steady_time.h"
#include "server/service/log_limit.h"
#include "server/service/log_writer.h"
#include "server/tracing/trace_context.h"

namespace simgrad::server::service {
namespace {

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

std::string_view NameOf(LogLevel level) {
  constexpr std::string_view kNames[] = {"info", "warning", "error"};
  return kNames[static_cast<size_t>(level)];
}

JsonLine Begin(std::string_view level, std::string_view event) {
  JsonLine line;
  line.Time("time", absl::Now()).Text("level", level).Text("event", event);
  return line;
}

void AddTrace(const std::string& trace_parent, JsonLine& line) {
  const auto context = tracing::TraceContextOf(trace_parent);
  if (!context) return;
  line.Text("trace_id", context->trace_id).Text("parent_span_id", context->parent_span_id);
}

constexpr std::string_view kNotes = "";

// A peer that opens calls only to cancel them must not write to the log at will, nor one that comes
// again at once whenever it is refused.
class Lines {
 public:
  static Lines& Get() {
    static auto* const lines = new Lines();
    return *lines;
  }
  void SetUp(const LogSettings& settings) {
    std::lock_guard lock(mutex_);
    settings_ = settings;
    limits_.clear();
  }
  // Whether another line of this level and kind may be written: the code of a request, or kNotes.
  bool Admits(LogLevel level, const std::string& kind, absl::Time now) {
    std::lock_guard lock(mutex_);
    if (level < settings_.least) return false;
    const bool is_limited =
        settings_.lines_per_second > 0 && (kind != kNotes || level != LogLevel::kError);
    return !is_limited ||
           limits_.try_emplace(kind, settings_.lines_per_second).first->second.Admits(now);
  }
  // Notes that tell how many lines were left out in the seconds that are over at `now`.
  std::vector<std::string> TakeLeftOut(absl::Time now) {
    std::lock_guard lock(mutex_);
    std::vector<std::string> notes;
    for (auto& [kind, limit] : limits_) {
      const int64_t left_out = limit.TakeLeftOut(now);
      if (left_out == 0) continue;
      notes.push_back(kind == kNotes ? absl::StrCat(left_out, " more notes are left out")
                                     : absl::StrCat(left_out, " more calls ended with ", kind,
                                                    "; their lines are left out"));
    }
    return notes;
  }

 private:
  std::mutex mutex_;
  LogSettings settings_;
  std::map<std::string, LogLimit> limits_;  // by kind, of which there are few
};

void WriteNote(LogLevel level, const std::string& text) {
  LogWriter::Get().Add(Begin(NameOf(level), "note").Text("message", text).Ended());
}

void TellOfLeftOut(absl::Time now) {
  for (const std::string& note : Lines::Get().TakeLeftOut(now)) WriteNote(LogLevel::kInfo, note);
}

}  // namespace

void SetUpLog(const LogSettings& settings) { Lines::Get().SetUp(settings); }

LogLevel LevelOf(const RequestRecord& record) {
  const std::string& code = record.outcome;
  if (code == "Internal") return LogLevel::kError;
  const bool lacked =
      code == "ResourceExhausted" || code == "Unavailable" || code == "DeadlineExceeded";
  return lacked ? LogLevel::kWarning : LogLevel::kInfo;
}

std::string LogLine(const RequestRecord& record) {
  JsonLine line = Begin(NameOf(LevelOf(record)), "request");
  line.Text("request_id", record.request_id);
  AddTrace(record.trace_parent, line);
  line.Text("method", record.method);
  const std::string& caller = record.caller.empty() ? record.peer : record.caller;
  if (!caller.empty()) line.Text("caller", caller);
  if (!record.world.empty()) {
    line.Text("world", record.world)
        .Integer("instances", record.instances)
        .Integer("steps", record.steps);
    if (record.runs > 1) line.Integer("runs", record.runs);
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
  if (!record.message.empty()) line.Text("message", record.message.substr(0, kMostOfText));
  return line.Ended();
}

void LogRequest(const RequestRecord& record) {
  const absl::Time now = SteadyNow();
  TellOfLeftOut(now);
  if (!Lines::Get().Admits(LevelOf(record), record.outcome, now)) return;
  LogWriter::Get().Add(LogLine(record));
}

void LogNote(LogLevel level, const std::string& text) {
  if (Lines::Get().Admits(level, std::string(kNotes), SteadyNow())) WriteNote(level, text);
}

void FlushLog(absl::Duration timeout) {
  TellOfLeftOut(absl::InfiniteFuture());
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
