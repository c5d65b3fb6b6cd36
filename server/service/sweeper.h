// Calls a function now and then on a thread of its own, for stores whose entries expire.
//
// Threads: the function runs on the sweeper's thread alone, until the sweeper is destroyed.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace simgrad::server::service {

class Sweeper {
 public:
  // Entries live for `ttl`; an expired one is held at most a quarter longer than that (1 s to 1 min).
  Sweeper(absl::Duration ttl, std::function<void()> drop_expired)
      : thread_([this, ttl, drop = std::move(drop_expired)](const std::stop_token& stop) {
          const auto pause =
              absl::ToChronoMilliseconds(std::clamp(ttl / 4, absl::Seconds(1), absl::Minutes(1)));
          while (!stop.stop_requested()) {
            drop();
            std::unique_lock lock(mutex_);
            ended_.wait_for(lock, stop, pause, [] { return false; });
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // the last member: it goes first
};

}  // namespace simgrad::server::service
