// Tells a peer that opens calls only to cancel them (HTTP/2 "rapid reset", CVE-2023-44487) from one
// that cancels what it no longer wants.
//
// A call counts as early-cancelled if it ended before anything of its answer left. Within a window
// of time a connection is to be cut once its address has had `most_of_address` of them, the
// connection itself `least_of_connection`, and they are at least half of its calls: a caller that
// cancels one call of ten, or two hundred at once when it ends, stays. The count of the address
// outlives its connections, so that one that comes back after a cut has little to spend.
// Threads: one at a time. Cost: two counters.
#pragma once

#include <chrono>
#include <cstdint>

namespace simgrad::server::service {

class ResetWindow {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLength{10};

  void Count(bool early_cancelled, Clock::time_point now) {
    if (now - start_ >= kLength) *this = ResetWindow(now);
    ++ended_;
    early_ += early_cancelled ? 1 : 0;
  }
  int64_t early() const { return early_; }
  bool MostlyEarly() const { return 2 * early_ >= ended_; }
  // Nothing of it counts any more.
  bool IsOver(Clock::time_point now) const { return now - start_ >= kLength; }

  ResetWindow() = default;

 private:
  explicit ResetWindow(Clock::time_point start) : start_(start) {}

  Clock::time_point start_{};
  int64_t ended_ = 0, early_ = 0;
};

struct ResetLimits {
  int64_t most_of_address = 500;
  int64_t least_of_connection = 50;
};

}  // namespace simgrad::server::service
