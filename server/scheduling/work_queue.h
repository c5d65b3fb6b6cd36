// A bounded queue of work with its worker threads: first in, first out.
//
// Admission is by queue capacity and memory; work whose deadline passes or that is cancelled while
// it waits is dropped without running. Every enqueued job is finished exactly once: by a worker,
// or, dropped, by the thread that noticed. Threads: any; jobs run on the queue's own threads, but
// for RunOrEnqueue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/cancellation.h"
#include "server/scheduling/memory_budget.h"

namespace simgrad::server::scheduling {

enum class RefusalReason { kFull, kMemory, kDeadline, kDraining };

struct Refusal {
  RefusalReason reason = RefusalReason::kFull;
  std::string message;
  absl::Duration retry_after;  // zero: never as it is
};

struct QueueOptions {
  int workers = 1;
  int64_t capacity = 64;  // jobs that wait
  int64_t memory_limit_bytes = int64_t{4} << 30;
};

class WorkQueue {
 public:
  struct Job {
    std::shared_ptr<Cancellation> cancellation;
    // `admitted` not OK: dropped while it waited, for that reason.
    std::function<void(absl::Status admitted, absl::Duration waited)> run;
  };

  explicit WorkQueue(const QueueOptions& options);
  // Cancels what is left and joins the workers.
  ~WorkQueue();

  // A place in the queue and the memory; the place must be used by one Enqueue.
  std::variant<MemoryBudget::Reservation, Refusal> Admit(int64_t memory_bytes, absl::Time deadline);
  void Enqueue(Job job);
  // For a job that takes less time than to hand it over: the calling thread runs it where a worker
  // could begin it now, else it waits as any other.
  void RunOrEnqueue(Job job);

  // Drops waiting jobs whose cancellation says so; call it after cancelling one.
  void DropCancelled();

  // From now on nothing is admitted; returns whether all work ended within the time.
  bool Drain(absl::Duration timeout);
  // Cancels waiting and running work.
  void CancelAll(const absl::Status& why);

  bool draining() const;
  int64_t waiting() const;
  int64_t running() const;
  int64_t memory_used_bytes() const { return memory_.used(); }
  int64_t memory_limit_bytes() const { return memory_.limit(); }

 private:
  struct Waiting {
    Job job;
    absl::Time since;
  };
  void Work();
  void RunJob(Waiting waiting);
  absl::Duration RetryAfter() const;  // mutex_ held

  const QueueOptions options_;
  MemoryBudget memory_;
  mutable std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_ended_;
  std::deque<Waiting> queue_;
  std::set<std::shared_ptr<Cancellation>> running_;
  int64_t places_ = 0;  // admitted and not yet taken by a worker
  int64_t active_ = 0;  // admitted and not yet ended
  double mean_run_seconds_ = 0.0;
  bool draining_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace simgrad::server::scheduling
