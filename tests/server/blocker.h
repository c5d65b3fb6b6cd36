// Jobs of a test's own in a work queue, and one that keeps a worker until it is told to go.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "server/scheduling/work_queue.h"

namespace simgrad::server::scheduling {

inline std::shared_ptr<Caller> Named(const std::string& name, double weight = 1.0) {
  CallerLimits limits;
  limits.weight = weight;
  return std::make_shared<Caller>(name, limits);
}

inline std::shared_ptr<Cancellation> NoDeadline() {
  return std::make_shared<Cancellation>(absl::InfiniteFuture());
}

using Run = std::function<void(const absl::Status&, absl::Duration, WorkQueue::Turn&)>;

inline WorkQueue::Job JobOf(const std::shared_ptr<Caller>& caller, Run run,
                            std::shared_ptr<Cancellation> cancellation = NoDeadline()) {
  WorkQueue::Job job;
  job.caller = caller;
  job.cancellation = std::move(cancellation);
  job.run = std::move(run);
  return job;
}

inline void Put(WorkQueue& queue, WorkQueue::Job job) {
  EXPECT_FALSE(queue.Enqueue(job).has_value());
}

// Occupies one worker until released.
class Blocker {
 public:
  explicit Blocker(WorkQueue& queue, std::shared_ptr<Cancellation> cancellation = NoDeadline(),
                   const std::shared_ptr<Caller>& caller = Named("blocker")) {
    std::promise<void> started;
    std::future<void> has_started = started.get_future();
    Put(queue, JobOf(
                   caller,
                   [&started, released = release_.get_future().share()](
                       const absl::Status&, absl::Duration, WorkQueue::Turn&) {
                     started.set_value();
                     released.wait();
                   },
                   std::move(cancellation)));
    has_started.wait();
  }
  ~Blocker() { Release(); }
  void Release() {
    if (!released_) release_.set_value();
    released_ = true;
  }

 private:
  std::promise<void> release_;
  bool released_ = false;
};

}  // namespace simgrad::server::scheduling
