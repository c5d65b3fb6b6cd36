#include "server/service/log_writer.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace simgrad::server::service {
namespace {

constexpr int64_t kMaxLines = 4096;  // that wait
constexpr std::chrono::milliseconds kGather{5};

}  // namespace

LogWriter& LogWriter::Get() {
  static auto* const writer = new LogWriter();
  return *writer;
}

LogWriter::LogWriter() {
  std::thread([this] { Work(); }).detach();
}

void LogWriter::Add(const std::string& line) {
  std::lock_guard lock(mutex_);
  if (lines_ >= kMaxLines) {
    ++dropped_;
    return;
  }
  text_ += line;
  text_ += '\n';
  if (++lines_ == 1) came_.notify_one();
}

void LogWriter::Flush(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  ++hurry_;
  hurried_.notify_one();
  written_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                    [this] { return lines_ == 0 && !writing_; });
  --hurry_;
}

void LogWriter::Work() {
  std::string text;
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return lines_ > 0; });
    hurried_.wait_for(lock, kGather, [this] { return hurry_ > 0; });
    text.clear();
    std::swap(text, text_);
    lines_ = 0;
    if (const int64_t dropped = std::exchange(dropped_, 0); dropped > 0) {
      absl::StrAppend(&text, "{\"level\":\"warning\",\"event\":\"note\",\"message\":\"", dropped,
                      " log lines were dropped\"}\n");
    }
    writing_ = true;
    lock.unlock();
    std::fwrite(text.data(), 1, text.size(), stderr);
    lock.lock();
    writing_ = false;
    if (lines_ == 0) written_.notify_all();
  }
}

}  // namespace simgrad::server::service
