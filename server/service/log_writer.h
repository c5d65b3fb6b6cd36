// Writes lines to stderr in the background: a reader that stalls must not stall the service.
//
// Lines of a few milliseconds leave in one write, so that a server of many small requests does not
// wake a thread for each. Threads: any. Lives as long as the process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/time/time.h"

namespace simgrad::server::service {

class LogWriter {
 public:
  static LogWriter& Get();

  // `line` without its end. Dropped, and counted, where too many wait.
  void Add(const std::string& line);
  // Waits until what was added so far is written, at most this long.
  void Flush(absl::Duration timeout);

 private:
  LogWriter();
  void Work();

  std::mutex mutex_;
  std::condition_variable came_;
  std::condition_variable hurried_;
  std::condition_variable written_;
  std::string text_;  // of the lines that wait
  int64_t lines_ = 0;
  int64_t dropped_ = 0;
  int hurry_ = 0;  // callers of Flush
  bool writing_ = false;
};

}  // namespace simgrad::server::service
