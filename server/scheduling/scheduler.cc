#include "server/scheduling/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduling/steady_time.h"

namespace simgrad::server::scheduling {
namespace {

// Two, so that one large program does not hold up the next large batch.
constexpr int kPreparationWorkers = 2;

// Large work runs where no small work wants the processor: at this value Linux gives it about a
// tenth of a contended core.
constexpr int kLargeNice = 10;

// Requests of a caller that may go first beside others': about as many as threads read calls.
constexpr int64_t kFewInFlight = 2;

// Large work may fill `capacity`; some places more are left to what turns out to be small.
int64_t MostWaiting(int64_t capacity) { return capacity + std::max<int64_t>(1, capacity / 4); }

// The words that say how a request becomes small enough.
const char* AdviceOn(MemoryUse use) {
  if (use == MemoryUse::kCompile) return " to prepare a program; send a smaller one";
  return use == MemoryUse::kUpload ? "; send fewer or smaller arrays at once"
                                   : "; send fewer instances or steps, or record fewer fields";
}

}  // namespace

Scheduler::Arrival::Held::~Held() {
  std::lock_guard lock(scheduler->mutex_);
  scheduler->waiting_ -= waits ? 1 : 0;
  if (works) scheduler->EndWorkOf(caller);
}

void Scheduler::EndWorkOf(const Caller* caller) {
  --working_;
  const auto found = working_of_.find(caller);
  if (--found->second == 0) working_of_.erase(found);
  ended_.notify_all();
}

void Scheduler::Arrival::Begin() {
  if (held_ == nullptr || !held_->waits) return;
  std::lock_guard lock(held_->scheduler->mutex_);
  --held_->scheduler->waiting_;
  held_->waits = false;
}

void Scheduler::Arrival::EndWork() {
  if (held_ == nullptr || !held_->works) return;
  Begin();
  std::lock_guard lock(held_->scheduler->mutex_);
  held_->works = false;
  held_->scheduler->EndWorkOf(held_->caller);
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : capacity_(options.capacity),
      most_waiting_(MostWaiting(options.capacity)),
      memory_(std::make_shared<MemoryBudget>(options.memory_limit_bytes)),
      // Every request that arrived has a place here: arrivals are bounded.
      small_({std::max(1, options.workers), most_waiting_, 0}),
      large_({std::max(1, options.workers), options.capacity, kLargeNice}),
      preparation_({kPreparationWorkers, most_waiting_, 0}) {}

// Preparation first: it hands over to the lanes.
void Scheduler::Stop() {
  CancelAll(absl::CancelledError("the server stops"));
  for (WorkQueue* queue : {&preparation_, &small_, &large_}) queue->Stop();
}

std::variant<Scheduler::Arrival, Refusal> Scheduler::Arrive(const std::shared_ptr<Caller>& caller,
                                                            absl::Time deadline) {
  if (SteadyNow() >= deadline) {
    return Refusal{RefusalReason::kDeadline, "the deadline had passed on arrival", {}};
  }
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (draining_) {
        return Refusal{RefusalReason::kDraining, "the server drains and takes no new work",
                       kElsewhereAfter};
      }
      if (waiting_ < most_waiting_) {
        if (!caller->Enter()) break;
        ++waiting_;
        ++working_;
        ++working_of_[caller.get()];
        return Arrival(std::make_unique<Arrival::Held>(this, caller));
      }
    }
    if (MakeRoomFor(*caller)) continue;
    return QueueFull();
  }
  return Refusal{
      RefusalReason::kInFlight,
      absl::StrCat("caller '", caller->name(), "' has ", caller->limits().requests_in_flight,
                   " requests in flight, as many as it may"),
      small_.RetryAfter()};
}

bool Scheduler::MayGoFirst(const Caller& caller) const {
  std::lock_guard lock(mutex_);
  const auto found = working_of_.find(&caller);
  const bool has_others = working_of_.size() > (found == working_of_.end() ? 0 : 1);
  return !has_others || found == working_of_.end() || found->second <= kFewInFlight;
}

Refusal Scheduler::QueueFull() const {
  return {RefusalReason::kFull,
          absl::StrCat("the queue is full (", most_waiting_, " requests wait)"),
          std::max(small_.RetryAfter(), preparation_.RetryAfter())};
}

std::optional<Refusal> Scheduler::FullFor(const Caller& caller) const {
  {
    std::lock_guard lock(mutex_);
    if (draining_ || waiting_ < most_waiting_) return std::nullopt;
  }
  const auto may = [&](const WorkQueue& queue) {
    return queue.MayMakeRoomFor(caller, WaitingElsewhere(caller, queue));
  };
  if (may(small_) || may(large_) || may(preparation_)) return std::nullopt;
  return QueueFull();
}

int64_t Scheduler::WaitingElsewhere(const Caller& caller, const WorkQueue& queue) const {
  int64_t waiting = 0;
  for (const WorkQueue* other : {&small_, &large_, &preparation_}) {
    if (other != &queue) waiting += other->waiting_of(caller);
  }
  return waiting;
}

int64_t Scheduler::Room() const {
  std::lock_guard lock(mutex_);
  if (draining_) return std::numeric_limits<int64_t>::max();
  return waiting_ == 0 ? most_waiting_ : 0;
}

// Gives up the newest waiting work of the caller with the most of it in one queue.
bool Scheduler::MakeRoomFor(const Caller& caller) {
  const auto make = [&](WorkQueue& queue) {
    return queue.MakeRoomFor(caller, WaitingElsewhere(caller, queue));
  };
  return make(small_) || make(large_) || make(preparation_);
}

std::variant<MemoryBudget::Reservation, Refusal> Scheduler::Reserve(
    int64_t bytes, MemoryUse use, const std::shared_ptr<Caller>& caller, int64_t held) {
  if (bytes <= memory_->limit() && bytes <= caller->limits().memory_bytes) {
    if (auto reservation = memory_->Reserve(bytes, use, caller)) return *std::move(reservation);
  }
  return WhyNot(held, bytes, use, *caller);
}

std::optional<Refusal> Scheduler::Enqueue(WorkQueue& queue, WorkQueue::Job& job, bool may_run) {
  for (;;) {
    auto refusal = may_run ? queue.RunOrEnqueue(job) : queue.Enqueue(job);
    if (!refusal || !queue.MakeRoomFor(*job.caller, WaitingElsewhere(*job.caller, queue))) {
      return refusal;
    }
  }
}

Refusal Scheduler::WhyNot(int64_t held, int64_t more, MemoryUse use, const Caller& caller) const {
  const int64_t share = caller.limits().memory_bytes;
  const int64_t bytes = held + more;
  if (bytes > memory_->limit()) {
    return Refusal{RefusalReason::kTooLarge,
                   absl::StrCat("the request needs about ", bytes, " bytes, the server has ",
                                memory_->limit(), AdviceOn(use)),
                   {}};
  }
  if (bytes > share) {
    return Refusal{RefusalReason::kShare,
                   absl::StrCat("the request needs about ", bytes, " bytes, caller '",
                                caller.name(), "' may have ", share, AdviceOn(use)),
                   {}};
  }
  const absl::Duration retry = std::max(small_.RetryAfter(), large_.RetryAfter());
  if (more > share - caller.memory_bytes()) {
    return Refusal{
        RefusalReason::kShare,
        absl::StrCat("the request needs about ", bytes, " bytes, caller '", caller.name(), "' has ",
                     caller.memory_bytes(), " of its ", share, " in use"),
        retry};
  }
  return Refusal{
      RefusalReason::kMemory,
      absl::StrCat("the request needs about ", bytes, " bytes, ",
                   std::max<int64_t>(0, memory_->limit() - memory_->used()), " are free now"),
      retry};
}

void Scheduler::DropCancelled() {
  for (WorkQueue* queue : {&preparation_, &small_, &large_}) queue->DropCancelled();
}

void Scheduler::StopArrivals() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Scheduler::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}

bool Scheduler::AwaitIdle(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, ForWaiting(timeout), [this] { return working_ == 0; });
}

void Scheduler::CancelAll(const absl::Status& why) {
  for (WorkQueue* queue : {&preparation_, &small_, &large_}) queue->CancelAll(why);
}

int64_t Scheduler::arrived_waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

}  // namespace simgrad::server::scheduling
