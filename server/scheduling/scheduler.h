// Decides when a request runs: admits requests, and owns the lanes of work and the memory.
//
// A request *arrives* once all its bytes are here, and before they are parsed: where too many wait already it is
// refused there (FullFor refuses it before it is read). It is then prepared, on the queue `preparation` where that may
// take long, and runs in one of two lanes: small work in one of its own, with the processor's
// preference, so that it never waits for large work.
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/caller.h"
#include "server/scheduling/memory_budget.h"
#include "server/scheduling/refusal.h"
#include "server/scheduling/work_queue.h"

namespace simgrad::server::scheduling {

enum class Lane : uint8_t { kSmall, kLarge };

struct SchedulerOptions {
  int workers = 1;        // of each lane
  int64_t capacity = 64;  // requests that wait
  int64_t memory_limit_bytes = int64_t{4} << 30;
};

class Scheduler {
 public:
  // A request that has come in; counts as in flight until destroyed.
  class Arrival {
   public:
    Arrival() = default;
    Arrival(Arrival&& other) noexcept = default;
    Arrival& operator=(Arrival&& other) noexcept = default;
    // It waits no more: it runs, or was refused.
    void Begin();
    // Nothing of it is to be done any more; only its reader may still take the answer.
    void EndWork();

   private:
    friend class Scheduler;
    struct Held {
      Held(Scheduler* its_scheduler, std::shared_ptr<Caller> its_caller)
          : scheduler(its_scheduler), caller(its_caller.get()), visit(std::move(its_caller)) {}
      ~Held();
      Scheduler* scheduler;
      const Caller* caller;  // lives as long as `visit`
      Visit visit;
      bool waits = true;
      bool works = true;
    };
    explicit Arrival(std::unique_ptr<Held> held) : held_(std::move(held)) {}
    std::unique_ptr<Held> held_;
  };

  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler() { Stop(); }

  // Cancels all work and waits for it. What was reserved may be given back still.
  void Stop();

  Callers& callers() { return callers_; }
  MemoryBudget& memory() { return *memory_; }
  const MemoryBudget& memory() const { return *memory_; }
  const std::shared_ptr<MemoryBudget>& shared_memory() { return memory_; }
  // The queue of requests that take long to prepare.
  WorkQueue& preparation() { return preparation_; }
  const WorkQueue& preparation() const { return preparation_; }
  WorkQueue& lane(Lane lane) { return lane == Lane::kSmall ? small_ : large_; }
  const WorkQueue& lane(Lane lane) const { return lane == Lane::kSmall ? small_ : large_; }

  std::variant<Arrival, Refusal> Arrive(const std::shared_ptr<Caller>& caller, absl::Time deadline);
  // Whether what this caller asks may be done at once, by the thread that read it and so before what
  // others wait for: no other caller has a request in flight, or this one has few itself.
  bool MayGoFirst(const Caller& caller) const;
  // Whether Arrive would say that the queue is full, for the price of a look; it may say so still
  // where this does not.
  std::optional<Refusal> FullFor(const Caller& caller) const;
  // How many may wait, if none waits; else 0.
  int64_t Room() const;
  // The refusal of a request that holds `held` bytes and did not get `more`.
  Refusal WhyNot(int64_t held, int64_t more, MemoryUse use, const Caller& caller) const;
  // Memory of a request that holds `held` bytes; the refusal says whether to try again.
  std::variant<MemoryBudget::Reservation, Refusal> Reserve(int64_t bytes, MemoryUse use,
                                                           const std::shared_ptr<Caller>& caller,
                                                           int64_t held = 0);
  // Puts a job into a queue of this scheduler, or runs it where it `may_run` at once. Where the queue is full, the newest
  // work of a caller that has more in it is given up. A refusal leaves the job as it is.
  std::optional<Refusal> Enqueue(WorkQueue& queue, WorkQueue::Job& job, bool may_run = false);

  // Drops waiting jobs whose cancellation says so; call it after cancelling one.
  void DropCancelled();
  // From now on nothing arrives.
  void StopArrivals();
  bool draining() const;
  // Returns whether all work ended within the time.
  bool AwaitIdle(absl::Duration timeout);
  void CancelAll(const absl::Status& why);

  // Sums of both lanes.
  int64_t waiting() const { return small_.waiting() + large_.waiting(); }
  int64_t running() const { return small_.running() + large_.running(); }
  int64_t busy() const { return small_.busy() + large_.busy(); }
  int64_t arrived_waiting() const;  // the lanes', and what is read or prepared
  int64_t capacity() const { return capacity_; }
  // All but the caches.
  int64_t memory_used_bytes() const { return memory_->used(); }
  int64_t memory_limit_bytes() const { return memory_->limit(); }

 private:
  bool MakeRoomFor(const Caller& caller);
  int64_t WaitingElsewhere(const Caller& caller, const WorkQueue& queue) const;
  void EndWorkOf(const Caller* caller);  // mutex_ held
  Refusal QueueFull() const;

  const int64_t capacity_;
  const int64_t most_waiting_;
  Callers callers_;
  const std::shared_ptr<MemoryBudget> memory_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int64_t waiting_ = 0;
  int64_t working_ = 0;
  std::unordered_map<const Caller*, int64_t> working_of_;
  bool draining_ = false;
  WorkQueue small_;
  WorkQueue large_;
  WorkQueue preparation_;  // goes first: it hands over to the lanes
};

}  // namespace simgrad::server::scheduling
