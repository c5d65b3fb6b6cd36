// The processor time that this machine has to spare.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace simgrad::server {

// A thread of the lowest priority, like the workers of large work, which computes while this lives. What it
// got is about what such a worker got beside it, on a machine that is busy with other work.
class SpareTime {
 public:
  SpareTime()
      : thread_([this] {
          setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
          while (!ending_) {
            timespec now{};
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
            nanoseconds_ = now.tv_sec * 1'000'000'000 + now.tv_nsec;
          }
        }) {}
  ~SpareTime() {
    ending_ = true;
    thread_.join();
  }
  absl::Duration spent() const { return absl::Nanoseconds(nanoseconds_.load()); }

 private:
  std::atomic<int64_t> nanoseconds_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

// Whether `holds` comes true within `limit` of `since`, or else, as other work may have had the processors
// until then, within as much spare time.
inline bool HoldsWithin(absl::Time since, absl::Duration limit,
                        const std::function<bool()>& holds) {
  // Looking takes some milliseconds of processor time where it reads a page of metrics.
  constexpr absl::Duration kLookEvery = absl::Milliseconds(10);
  while (absl::Now() - since < limit) {
    if (holds()) return true;
    absl::SleepFor(kLookEvery);
  }
  const SpareTime spare;
  while (!holds()) {
    if (spare.spent() > limit) return false;
    absl::SleepFor(kLookEvery);
  }
  return true;
}

}  // namespace simgrad::server
