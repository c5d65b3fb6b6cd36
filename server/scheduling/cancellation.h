// Whether a piece of work should go on: asked between chunks, told from other threads.
//
// Threads: all methods may be called from any thread.
#pragma once

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace simgrad::server::scheduling {

class Cancellation {
 public:
  // A time of SteadyNow. InfiniteFuture: no deadline.
  explicit Cancellation(absl::Time deadline) : deadline_(deadline) {}

  // The first reason holds.
  void Cancel(absl::Status why);

  // OK, the reason of the cancellation, or DEADLINE_EXCEEDED.
  absl::Status Check() const;

  absl::Time deadline() const { return deadline_; }

 private:
  const absl::Time deadline_;
  mutable std::mutex mutex_;
  absl::Status why_;
};

}  // namespace simgrad::server::scheduling
