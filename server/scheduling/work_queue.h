// One lane of work: a bounded queue that callers share by weight, and its workers.
//
// A worker is a right to run, not a thread: work that waits for a slow reader gives its worker to
// other work and asks for one again when the reader has read; work that others are owed a turn
// before does so at the ends of its chunks. Work whose deadline passes or that is cancelled while
// it waits is dropped without running. Every job that is taken ends exactly once: run by a worker,
// dropped by the thread that noticed, or refused in favour of another caller.
// Threads: any; jobs run on the queue's own threads, but for RunOrEnqueue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/caller.h"
#include "server/scheduling/cancellation.h"
#include "server/scheduling/fair_queue.h"
#include "server/scheduling/refusal.h"

namespace simgrad::server::scheduling {

struct QueueOptions {
  int workers = 1;
  int64_t capacity = 64;  // jobs that wait
  // Added to the nice value of the threads: how much the operating system prefers others' work.
  int nice = 0;
  // Jobs that are paused, each with a thread of its own.
  int most_paused = 256;
};

class WorkQueue {
 public:
  class Turn;
  struct Job {
    std::shared_ptr<Caller> caller;
    std::shared_ptr<Cancellation> cancellation;
    // `admitted` not OK: dropped while it waited, for that reason.
    std::function<void(const absl::Status& admitted, absl::Duration waited, Turn& turn)> run;
    // Instead of `run`: it waited, and has to make room for a caller with less. Empty: it never
    // has.
    std::function<void(const Refusal& refusal)> make_room;
    // Beside `run`: too many jobs are paused, and this one is to end. It cancels itself. Called
    // without locks of the queue; empty: it is cancelled by the queue.
    std::function<void()> give_up;
  };

  // A worker, as the job that has it sees it. Used by the job's thread alone.
  class Turn {
   public:
    // Between chunks: lets callers go first that had less, and returns when it is this job's turn
    // again, or the job is cancelled. `waits`: called before it gives the worker up, if it does; it
    // is quick and takes no lock.
    void LetOthers(const std::function<void()>& waits = {});
    // Nothing to do until something else happens: gives the worker back. Where as many jobs are
    // paused as may be, the one that is paused longest is given up, of the caller with most of them.
    // The job holds no lock that its give_up takes, nor one that another's does.
    void Pause();
    // Waits for a worker, or for the job to be cancelled.
    void Resume();

   private:
    friend class WorkQueue;
    Turn(WorkQueue* queue, const Job& job)
        : queue_(queue),
          caller_(job.caller),
          cancellation_(job.cancellation),
          give_up_(job.give_up) {}
    WorkQueue* queue_;
    const std::shared_ptr<Caller> caller_;
    const std::shared_ptr<Cancellation> cancellation_;
    const std::function<void()> give_up_;
    absl::Time since_;            // when it began to run, or went on
    double charged_seconds_ = 0;  // in advance
    double ran_seconds_ = 0;      // until `since_`
    bool runs_ = false;
    std::condition_variable granted_;
  };

  explicit WorkQueue(const QueueOptions& options);
  ~WorkQueue() { Stop(); }

  // Cancels what is left, waits for it and ends the threads: nothing may be enqueued any more.
  void Stop();

  // Nullopt: the job is taken. Otherwise `job` is untouched.
  std::optional<Refusal> Enqueue(Job& job);
  // For a job that takes less time than to hand it over: the calling thread runs it where a worker
  // could begin it now, else it waits as any other.
  std::optional<Refusal> RunOrEnqueue(Job& job);

  // Refuses the newest waiting job of the caller with the most of them, where that caller still has at least as
  // many as `caller` would have with one more: its own here, and `others` elsewhere. False: there is none.
  bool MakeRoomFor(const Caller& caller, int64_t others);
  // Whether it may: there is such a caller.
  bool MayMakeRoomFor(const Caller& caller, int64_t others) const;

  // Drops waiting jobs whose cancellation says so; call it after cancelling one.
  void DropCancelled();

  // Returns whether all work ended within the time.
  bool AwaitIdle(absl::Duration timeout);
  // Cancels waiting and running work.
  void CancelAll(const absl::Status& why);

  int64_t waiting() const;  // to begin
  int64_t waiting_of(const Caller& caller) const;
  int64_t running() const;  // begun and not ended
  int64_t busy() const;     // workers that have work
  int workers() const { return options_.workers; }
  // How long until a worker is free for one more request, by how long work took and takes.
  absl::Duration RetryAfter() const;

 private:
  // Waits for a worker: to begin, or (`turn` set) to go on.
  struct Waiting {
    Job job;
    absl::Time since;
    Turn* turn = nullptr;
    double charged_seconds = 0.0;  // to its caller, when it was given a worker
  };
  void Work();
  bool TakeWorker();  // for a job that runs at once; false: there is none, or others wait
  void RunJob(Waiting waiting);
  std::optional<Refusal> CheckRoom() const;  // mutex_ held, as in all that follow
  std::shared_ptr<Caller> WithMoreThan(const Caller& caller, int64_t others) const;
  bool HasWorker() const { return busy_ < options_.workers; }
  void Dispatch();
  void AddThread();
  void Begin(Turn& turn);
  void End(Turn& turn);
  void AwaitGrant(Turn& turn, std::unique_lock<std::mutex>& lock);
  Turn* LongestPaused() const;
  double ExpectedSeconds() const;

  const QueueOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_ended_;
  std::condition_variable thread_ended_;
  FairQueue<Waiting> queue_;
  std::deque<Waiting> ready_;           // have a worker, and need a thread
  std::atomic<int64_t> contenders_{0};  // size of `queue_`
  std::unordered_set<Turn*> running_;
  absl::Time cancelled_at_ = absl::InfinitePast();  // by CancelAll, and why
  absl::Status cancelled_why_;
  std::unordered_map<const Caller*, int64_t> jobs_of_;  // begun and not ended
  int64_t busy_ = 0;
  int64_t waiting_ = 0;  // jobs of `queue_` that have not begun
  int64_t active_ = 0;   // jobs taken and not ended
  int threads_ = 0;
  int without_worker_ = 0;   // threads whose job paused, or waits to go on
  std::list<Turn*> paused_;  // longest paused first; none that was given up
  int idle_threads_ = 0;
  double mean_run_seconds_ = 0.0;
  bool stopping_ = false;
};

}  // namespace simgrad::server::scheduling
