// Tries now and then whether the server serves, and tells when the answer changes.
//
// A check fails where one of its probes fails, or has not ended within the limit. A probe that
// hangs is left alone, counts as failed while it does, and is tried again once it has ended. One that
// waits for work that goes on is no failure.
// Threads: one of its own, and one for each probe while it runs; everything else from any. A probe
// that hangs outlives the check, with what it holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

class SelfCheck {
 public:
  struct Probe {
    std::string name;  // "a rollout"
    std::function<absl::Status()> run;
    // Whether a run that has not ended may be waiting for work that goes on; null: never. Asked when it
    // begins and at the end of each check: two answers of no in a row are a failure, as work that has
    // just ended left it no time.
    std::function<bool()> is_held_up = nullptr;
  };
  // After so many failures in a row there is no hope.
  static constexpr int kMostFailures = 5;

  // `interval`: between the beginnings of two checks; a check that takes longer delays the next.
  // `limit`: of each check. `tell`: called where a check fails after one that did not, and the
  // other way round.
  SelfCheck(absl::Duration interval, absl::Duration limit, std::vector<Probe> probes,
            std::function<void(const absl::Status&)> tell);
  // Waits for a call of `tell`, but for no probe.
  ~SelfCheck() = default;

  // From now on nothing is told, but for what is being told.
  void Stop() { thread_.request_stop(); }
  // kMostFailures in a row; stays so.
  bool HasFailed() const { return has_failed_; }
  int64_t checks() const { return checks_; }  // that have ended

 private:
  struct Board;
  void Work(const std::stop_token& stop);
  void Begin();
  absl::Status Outcome();

  const absl::Duration interval_, limit_;
  const std::vector<Probe> probes_;
  const std::function<void(const absl::Status&)> tell_;
  const std::shared_ptr<Board> board_;  // of the probes' threads too
  std::atomic<bool> has_failed_{false};
  std::atomic<int64_t> checks_{0};
  std::jthread thread_;
};

}  // namespace simgrad::server::service
