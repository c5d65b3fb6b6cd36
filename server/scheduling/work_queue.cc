#include "server/scheduling/work_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduling/steady_time.h"

namespace simgrad::server::scheduling {
namespace {

// A caller that had less goes first once it is behind by this much: shorter turns would move state
// in and out of caches for nothing.
constexpr double kTurnSeconds = 0.02;

// Jobs that may be without a worker, each with a thread of its own: beyond, none makes way for
// others between its chunks.
constexpr int kMostWithoutWorker = 512;

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(SteadyNow() - start); }

}  // namespace

WorkQueue::WorkQueue(const QueueOptions& options) : options_(options) {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < options_.workers; ++i) AddThread();
}

void WorkQueue::Stop() {
  CancelAll(absl::CancelledError("the server stops"));
  std::unique_lock lock(mutex_);
  stopping_ = true;
  work_came_.notify_all();
  thread_ended_.wait(lock, [this] { return threads_ == 0; });
}

// ---- Coming in ----

std::optional<Refusal> WorkQueue::CheckRoom() const {
  if (waiting_ < options_.capacity || HasWorker()) return std::nullopt;
  return Refusal{RefusalReason::kFull,
                 absl::StrCat("the queue is full (", options_.capacity, " requests wait)"),
                 {}};
}

std::optional<Refusal> WorkQueue::Enqueue(Job& job) {
  std::unique_lock lock(mutex_);
  if (auto refusal = CheckRoom()) {
    lock.unlock();
    refusal->retry_after = RetryAfter();
    return refusal;
  }
  ++active_;
  ++waiting_;
  const std::shared_ptr<Caller> caller = job.caller;
  queue_.PushBack(caller, {std::move(job), SteadyNow()});
  Dispatch();
  return std::nullopt;
}

bool WorkQueue::TakeWorker() {
  std::lock_guard lock(mutex_);
  if (!queue_.empty() || !HasWorker()) return false;
  ++active_;
  ++busy_;
  return true;
}

std::optional<Refusal> WorkQueue::RunOrEnqueue(Job& job) {
  if (!TakeWorker()) return Enqueue(job);
  RunJob({std::move(job), SteadyNow()});
  return std::nullopt;
}

std::shared_ptr<Caller> WorkQueue::WithMoreThan(const Caller& caller, int64_t others) const {
  auto [longest, count] = queue_.Longest();
  if (longest.get() == &caller || count <= queue_.size(&caller) + others + 1) return nullptr;
  return longest;
}

bool WorkQueue::MayMakeRoomFor(const Caller& caller, int64_t others) const {
  std::lock_guard lock(mutex_);
  return WithMoreThan(caller, others) != nullptr;
}

bool WorkQueue::MakeRoomFor(const Caller& caller, int64_t others) {
  std::optional<Waiting> dropped;
  {
    std::lock_guard lock(mutex_);
    const std::shared_ptr<Caller> longest = WithMoreThan(caller, others);
    if (longest == nullptr) return false;
    dropped = queue_.TakeNewest(longest.get(), [](const Waiting& waiting) {
      return waiting.turn == nullptr && waiting.job.make_room != nullptr;
    });
    if (!dropped) return false;
    contenders_ = queue_.size();
    --waiting_;
  }
  const Refusal refusal = {RefusalReason::kFull, "the queue is full, and others wait who had less",
                           RetryAfter()};
  dropped->job.make_room(refusal);
  dropped->job = {};  // what it holds goes before the work counts as ended
  std::lock_guard lock(mutex_);
  --active_;
  work_ended_.notify_all();
  return true;
}

// ---- Workers ----

// Gives free workers to what waits.
void WorkQueue::Dispatch() {
  while (HasWorker() && !queue_.empty()) {
    Waiting next = queue_.Pop(mean_run_seconds_);
    ++busy_;
    next.charged_seconds = mean_run_seconds_;
    if (next.turn != nullptr) {
      next.turn->charged_seconds_ = next.charged_seconds;
      Begin(*next.turn);
      next.turn->granted_.notify_one();
      continue;
    }
    --waiting_;
    ready_.push_back(std::move(next));
    // A thread for each worker, beside those whose jobs have none.
    const bool is_short = static_cast<size_t>(idle_threads_) < ready_.size();
    if (is_short && threads_ - without_worker_ < options_.workers) AddThread();
    work_came_.notify_one();
  }
  contenders_ = queue_.size();
}

// If the system has no thread left, work waits for one of the existing threads.
void WorkQueue::AddThread() {
  try {
    std::thread([this] { Work(); }).detach();
    ++threads_;
  } catch (const std::system_error&) {
    if (threads_ == 0) throw;
  }
}

void WorkQueue::Work() {
  if (options_.nice != 0) {
    // This holds for this thread and for threads that it starts.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), options_.nice);
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_threads_;
    work_came_.wait(lock, [this] { return stopping_ || !ready_.empty(); });
    --idle_threads_;
    if (ready_.empty()) break;
    Waiting next = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    RunJob(std::move(next));
    lock.lock();
  }
  --threads_;
  thread_ended_.notify_all();
}

void WorkQueue::Begin(Turn& turn) {
  turn.since_ = SteadyNow();
  turn.runs_ = true;
}

// The worker is free; its caller has paid.
void WorkQueue::End(Turn& turn) {
  const double seconds = SecondsSince(turn.since_);
  turn.ran_seconds_ += seconds;
  queue_.Charge(turn.caller_, seconds - turn.charged_seconds_);
  turn.charged_seconds_ = 0;
  turn.runs_ = false;
  --busy_;
}

void WorkQueue::RunJob(Waiting waiting) {
  const absl::Status admitted = waiting.job.cancellation->Check();
  Turn turn(this, waiting.job);
  {
    std::lock_guard lock(mutex_);
    turn.charged_seconds_ = waiting.charged_seconds;
    Begin(turn);
    running_.insert(&turn);
    // It may have been in no list while all others were cancelled.
    if (waiting.since <= cancelled_at_) turn.cancellation_->Cancel(cancelled_why_);
    ++jobs_of_[turn.caller_.get()];
  }
  waiting.job.run(admitted, SteadyNow() - waiting.since, turn);
  waiting.job = {};  // what it holds goes before the work counts as ended
  std::lock_guard lock(mutex_);
  End(turn);
  // An exponential mean over about the last eight runs.
  if (admitted.ok()) mean_run_seconds_ += (turn.ran_seconds_ - mean_run_seconds_) / 8.0;
  running_.erase(&turn);
  if (--jobs_of_[turn.caller_.get()] == 0) {
    jobs_of_.erase(turn.caller_.get());
    queue_.Forget(turn.caller_.get());
  }
  --active_;
  Dispatch();
  work_ended_.notify_all();
}

// Waits in the queue until a worker is granted. Cancelled work goes on with one too many: it ends.
void WorkQueue::AwaitGrant(Turn& turn, std::unique_lock<std::mutex>& lock) {
  queue_.PushFront(turn.caller_, {{}, SteadyNow(), &turn, 0.0});
  Dispatch();
  while (!turn.runs_) {
    if (!turn.cancellation_->Check().ok()) {
      queue_.TakeIf([&turn](const Waiting& waiting) { return waiting.turn == &turn; });
      contenders_ = queue_.size();
      ++busy_;
      Begin(turn);
      break;
    }
    // DropCancelled wakes it, and the deadline. A cancellation that nobody told of is seen within a second.
    const absl::Duration left = turn.cancellation_->deadline() - SteadyNow();
    turn.granted_.wait_for(lock, ForWaiting(std::min(left, absl::Seconds(1))));
  }
  --without_worker_;
}

void WorkQueue::Turn::LetOthers(const std::function<void()>& waits) {
  if (queue_->contenders_.load(std::memory_order_relaxed) == 0) return;
  std::unique_lock lock(queue_->mutex_);
  const double owed = SecondsSince(since_) - charged_seconds_;
  queue_->queue_.Charge(caller_, owed);
  charged_seconds_ += owed;
  const bool is_due = queue_->queue_.IsAhead(caller_.get(), kTurnSeconds);
  if (!is_due || queue_->without_worker_ >= kMostWithoutWorker) return;
  if (waits) waits();
  ++queue_->without_worker_;
  queue_->End(*this);
  queue_->AwaitGrant(*this, lock);
}

// The caller with most paused jobs; among those of equal callers, the longest paused.
WorkQueue::Turn* WorkQueue::LongestPaused() const {
  std::unordered_map<const Caller*, int64_t> paused;
  for (const Turn* turn : paused_) ++paused[turn->caller_.get()];
  Turn* longest = nullptr;
  int64_t most = 0;
  for (Turn* turn : paused_) {
    const int64_t count = paused[turn->caller_.get()];
    if (count > most) {
      longest = turn;
      most = count;
    }
  }
  return longest;
}

void WorkQueue::Turn::Pause() {
  std::function<void()> give_up;
  std::shared_ptr<Cancellation> longest;
  {
    std::lock_guard lock(queue_->mutex_);
    if (!runs_) return;
    ++queue_->without_worker_;
    queue_->paused_.push_back(this);
    queue_->End(*this);
    queue_->Dispatch();
    if (static_cast<int>(queue_->paused_.size()) <= queue_->options_.most_paused) return;
    Turn* const turn = queue_->LongestPaused();
    queue_->paused_.remove(turn);
    give_up = turn->give_up_;
    longest = turn->cancellation_;
  }
  if (give_up) return give_up();
  longest->Cancel(absl::ResourceExhaustedError("too many others wait as this does"));
  queue_->DropCancelled();
}

void WorkQueue::Turn::Resume() {
  std::unique_lock lock(queue_->mutex_);
  if (runs_) return;
  queue_->paused_.remove(this);
  queue_->AwaitGrant(*this, lock);
}

// ---- Going out ----

void WorkQueue::DropCancelled() {
  std::vector<Waiting> dropped;
  {
    std::lock_guard lock(mutex_);
    const auto is_over = [](const Waiting& waiting) {
      return waiting.turn == nullptr && !waiting.job.cancellation->Check().ok();
    };
    dropped = queue_.TakeIf(is_over);
    contenders_ = queue_.size();
    const auto count = static_cast<int64_t>(dropped.size());
    waiting_ -= count;
    busy_ += count;
    // Jobs that wait to go on are woken and look for themselves.
    queue_.ForEach([](const Waiting& waiting) {
      if (waiting.turn != nullptr) waiting.turn->granted_.notify_one();
    });
  }
  for (Waiting& waiting : dropped) RunJob(std::move(waiting));
}

bool WorkQueue::AwaitIdle(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return work_ended_.wait_for(lock, ForWaiting(timeout), [this] { return active_ == 0; });
}

void WorkQueue::CancelAll(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    cancelled_at_ = SteadyNow();
    cancelled_why_ = why;
    for (Turn* turn : running_) turn->cancellation_->Cancel(why);
    const auto cancel = [&why](const Waiting& waiting) {
      if (waiting.turn == nullptr) waiting.job.cancellation->Cancel(why);
    };
    queue_.ForEach(cancel);
    std::for_each(ready_.begin(), ready_.end(), cancel);
  }
  DropCancelled();
}

// The expected run time. Work that has run longer than the mean is expected to run as long again.
double WorkQueue::ExpectedSeconds() const {
  if (running_.empty()) return mean_run_seconds_;
  double sum = 0.0;
  for (const Turn* turn : running_) {
    const double ran = turn->ran_seconds_ + (turn->runs_ ? SecondsSince(turn->since_) : 0.0);
    sum += std::max(mean_run_seconds_, ran);
  }
  return sum / static_cast<double>(running_.size());
}

absl::Duration WorkQueue::RetryAfter() const {
  std::lock_guard lock(mutex_);
  const double ahead = static_cast<double>(waiting_ + 1) / options_.workers;
  return absl::Seconds(std::clamp(ExpectedSeconds() * ahead, 0.05, 30.0));
}

int64_t WorkQueue::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

int64_t WorkQueue::waiting_of(const Caller& caller) const {
  std::lock_guard lock(mutex_);
  return queue_.size(&caller);
}

int64_t WorkQueue::running() const {
  std::lock_guard lock(mutex_);
  return active_ - waiting_;
}

int64_t WorkQueue::busy() const {
  std::lock_guard lock(mutex_);
  return busy_;
}

}  // namespace simgrad::server::scheduling
