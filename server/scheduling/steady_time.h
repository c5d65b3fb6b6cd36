// The time that durations are measured by: it does not move where the machine's clock is set.
//
// It is no date, and compares with no absl::Now(). Deadlines of callers are such times: a caller sends how long
// it waits (server/service/call_deadline.h).
// Threads: any.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace simgrad::server {

inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// For a condition that is waited for: as long, and at most a year.
inline std::chrono::nanoseconds ForWaiting(absl::Duration timeout) {
  return absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
}

}  // namespace simgrad::server
