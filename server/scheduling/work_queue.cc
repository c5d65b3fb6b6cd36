#include "server/scheduling/work_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace simgrad::server::scheduling {

WorkQueue::WorkQueue(const QueueOptions& options)
    : options_(options), memory_(options.memory_limit_bytes) {
  for (int i = 0; i < std::max(1, options.workers); ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

WorkQueue::~WorkQueue() {
  CancelAll(absl::CancelledError("the server stops"));
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_came_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// Work ahead of a new request takes (waiting / workers) mean runs.
absl::Duration WorkQueue::RetryAfter() const {
  const double ahead = static_cast<double>(places_ + 1) / static_cast<double>(workers_.size());
  return absl::Seconds(std::clamp(mean_run_seconds_ * ahead, 0.05, 30.0));
}

std::variant<MemoryBudget::Reservation, Refusal> WorkQueue::Admit(int64_t memory_bytes,
                                                                  absl::Time deadline) {
  std::lock_guard lock(mutex_);
  if (draining_) {
    return Refusal{RefusalReason::kDraining, "the server drains and takes no new work",
                   absl::Seconds(1)};
  }
  if (absl::Now() >= deadline) {
    return Refusal{RefusalReason::kDeadline, "the deadline had passed on arrival", {}};
  }
  const bool worker_is_free = static_cast<size_t>(active_) < workers_.size();
  if (places_ >= options_.capacity && !worker_is_free) {
    return Refusal{RefusalReason::kFull,
                   absl::StrCat("the queue is full (", options_.capacity, " requests wait)"),
                   RetryAfter()};
  }
  if (memory_bytes > memory_.limit()) {
    return Refusal{
        RefusalReason::kMemory,
        absl::StrCat("the request needs about ", memory_bytes, " bytes, the server has ",
                     memory_.limit(), "; send fewer instances or steps, or record fewer fields"),
        {}};
  }
  auto reservation = memory_.Reserve(memory_bytes);
  if (!reservation) {
    return Refusal{RefusalReason::kMemory,
                   absl::StrCat("the request needs about ", memory_bytes, " bytes, ",
                                memory_.limit() - memory_.used(), " are free now"),
                   RetryAfter()};
  }
  ++places_;
  ++active_;
  return std::move(*reservation);
}

void WorkQueue::Enqueue(Job job) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(job), absl::Now()});
  }
  work_came_.notify_one();
}

void WorkQueue::RunOrEnqueue(Job job) {
  {
    std::lock_guard lock(mutex_);
    const int64_t running = active_ - places_;
    if (!queue_.empty() || running >= static_cast<int64_t>(workers_.size())) {
      queue_.push_back({std::move(job), absl::Now()});
      work_came_.notify_one();
      return;
    }
    --places_;
    running_.insert(job.cancellation);
  }
  RunJob({std::move(job), absl::Now()});
}

void WorkQueue::RunJob(Waiting waiting) {
  const absl::Time start = absl::Now();
  const absl::Status admitted = waiting.job.cancellation->Check();
  waiting.job.run(admitted, start - waiting.since);
  waiting.job.run = nullptr;  // what it holds goes before the work counts as ended
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  {
    std::lock_guard lock(mutex_);
    // An exponential mean over about the last eight runs.
    if (admitted.ok()) mean_run_seconds_ += (seconds - mean_run_seconds_) / 8.0;
    running_.erase(waiting.job.cancellation);
    --active_;
  }
  work_ended_.notify_all();
}

void WorkQueue::Work() {
  for (;;) {
    Waiting next;
    {
      std::unique_lock lock(mutex_);
      work_came_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
      --places_;
      running_.insert(next.job.cancellation);
    }
    RunJob(std::move(next));
  }
}

void WorkQueue::DropCancelled() {
  std::vector<Waiting> dropped;
  {
    std::lock_guard lock(mutex_);
    for (auto it = queue_.begin(); it != queue_.end();) {
      if (it->job.cancellation->Check().ok()) {
        ++it;
        continue;
      }
      dropped.push_back(std::move(*it));
      it = queue_.erase(it);
      --places_;
    }
  }
  for (Waiting& waiting : dropped) RunJob(std::move(waiting));
}

bool WorkQueue::Drain(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  std::unique_lock lock(mutex_);
  draining_ = true;
  return work_ended_.wait_until(lock, absl::ToChronoTime(end), [this] { return active_ == 0; });
}

void WorkQueue::CancelAll(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& cancellation : running_) cancellation->Cancel(why);
    for (const Waiting& waiting : queue_) waiting.job.cancellation->Cancel(why);
  }
  DropCancelled();
}

bool WorkQueue::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}

int64_t WorkQueue::waiting() const {
  std::lock_guard lock(mutex_);
  return places_;
}

int64_t WorkQueue::running() const {
  std::lock_guard lock(mutex_);
  return active_ - places_;
}

}  // namespace simgrad::server::scheduling
