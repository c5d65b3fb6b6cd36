#include "server/service/request_log.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
        absl::StrAppend(&line, "dropped ", dropped, " log lines\n");
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

void Write(const std::string& line) {
  LogWriter::Get().Add(absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ", line, "\n"));
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
