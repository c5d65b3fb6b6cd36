#include "server/service/request_log.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "precision/hash.h"

namespace simgrad::server::service {
namespace {

constexpr size_t kMaxMessage = 300;

// Writes lines in the background: a reader of stderr that stalls must not stall the service. Lives
// as long as the process.
class LogWriter {
 public:
  static LogWriter& Get() {
    static auto* const writer = new LogWriter();
    return *writer;
  }

  void Add(std::string line) {
    std::lock_guard lock(mutex_);
    if (lines_.size() >= kMaxLines) {
      ++dropped_;
      return;
    }
    lines_.push_back(std::move(line));
    came_.notify_one();
  }

  void Flush(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    written_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                      [this] { return lines_.empty() && !writing_; });
  }

 private:
  static constexpr size_t kMaxLines = 4096;

  LogWriter() {
    std::thread([this] { Work(); }).detach();
  }

  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      came_.wait(lock, [this] { return !lines_.empty(); });
      std::string line = std::move(lines_.front());
      lines_.pop_front();
      if (const uint64_t dropped = std::exchange(dropped_, 0); dropped > 0) {
        absl::StrAppend(&line, "{\"level\":\"warning\",\"event\":\"note\",\"message\":\"", dropped,
                        " log lines were dropped\"}\n");
      }
      writing_ = true;
      lock.unlock();
      std::fwrite(line.data(), 1, line.size(), stderr);
      lock.lock();
      writing_ = false;
      if (lines_.empty()) written_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::condition_variable written_;
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
  bool writing_ = false;
};

// A JSON object, field by field. Bytes outside ASCII are written as \u00XX: what a caller wrote
// need not be UTF-8, and a log line must be JSON whatever it is.
class JsonLine {
 public:
  JsonLine& Text(const std::string& name, const std::string& value) {
    std::string escaped;
    for (const unsigned char c : value) {
      if (c == '"' || c == '\\') {
        escaped += {'\\', static_cast<char>(c)};
      } else if (c >= 0x20 && c < 0x7F) {
        escaped += static_cast<char>(c);
      } else {
        absl::StrAppend(&escaped, absl::StrFormat("\\u%04x", c));
      }
    }
    return Add(name, absl::StrCat("\"", escaped, "\""));
  }
  JsonLine& Integer(const std::string& name, int64_t value) {
    return Add(name, absl::StrCat(value));
  }
  JsonLine& Milliseconds(const std::string& stage, double seconds) {
    return Add(stage + "_ms", absl::StrFormat("%.3f", seconds * 1e3));
  }
  std::string Ended() const { return line_ + "}"; }

 private:
  JsonLine& Add(const std::string& name, const std::string& value) {
    absl::StrAppend(&line_, line_.size() > 1 ? "," : "", "\"", name, "\":", value);
    return *this;
  }
  std::string line_ = "{";
};

JsonLine Begin(const std::string& level, const std::string& event) {
  JsonLine line;
  line.Text("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()))
      .Text("level", level)
      .Text("event", event);
  return line;
}

// version-trace_id-parent_id-flags, in lower-case hex, the ids not all zero (W3C Trace Context).
void AddTrace(const std::string& trace_parent, JsonLine& line) {
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

}  // namespace

std::string LogLine(const RequestRecord& record) {
  const bool failed = record.outcome == "Internal";
  JsonLine line = Begin(failed ? "error" : "info", "request");
  line.Text("request_id", record.request_id);
  AddTrace(record.trace_parent, line);
  line.Text("method", record.method);
  if (!record.world.empty()) {
    line.Text("world", record.world)
        .Integer("instances", record.instances)
        .Integer("steps", record.steps);
  }
  line.Text("code", record.outcome);
  double claimed = 0;
  for (const auto& [stage, seconds] : record.seconds) {
    if (stage == "total") continue;
    line.Milliseconds(stage, seconds);
    claimed += seconds;
  }
  if (const auto total = record.seconds.find("total"); total != record.seconds.end()) {
    line.Milliseconds("other", total->second - claimed).Milliseconds("total", total->second);
  }
  if (!record.message.empty()) line.Text("message", record.message.substr(0, kMaxMessage));
  return line.Ended();
}

void LogRequest(const RequestRecord& record) { LogWriter::Get().Add(LogLine(record) + "\n"); }

void LogNote(LogLevel level, const std::string& text) {
  constexpr const char* kNames[] = {"info", "warning", "error"};
  const std::string name = kNames[static_cast<size_t>(level)];
  LogWriter::Get().Add(Begin(name, "note").Text("message", text).Ended() + "\n");
}

void FlushLog(absl::Duration timeout) { LogWriter::Get().Flush(timeout); }

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
