// Lets so many log lines of one kind through each second, and counts the others.
//
// Threads: any. Times are steady ones (scheduling/steady_time.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/time/time.h"

namespace simgrad::server::service {

class LogLimit {
 public:
  explicit LogLimit(int64_t lines_per_second) : most_(lines_per_second) {}

  // Whether another line may be written.
  bool Admits(absl::Time now) {
    std::lock_guard lock(mutex_);
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      lines_ = 0;
    }
    if (lines_ < most_) {
      ++lines_;
      return true;
    }
    ++left_out_;
    return false;
  }
  // Lines left out that nobody has been told of, once their second is over; else 0.
  int64_t TakeLeftOut(absl::Time now) {
    std::lock_guard lock(mutex_);
    return now - second_ < absl::Seconds(1) ? 0 : std::exchange(left_out_, 0);
  }

 private:
  const int64_t most_;
  std::mutex mutex_;
  absl::Time second_ = absl::InfinitePast();
  int64_t lines_ = 0, left_out_ = 0;
};

}  // namespace simgrad::server::service
