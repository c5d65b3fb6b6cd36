#include "server/scheduling/work_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace simgrad::server::scheduling {
namespace {

using Reservation = MemoryBudget::Reservation;

std::shared_ptr<Cancellation> NoDeadline() {
  return std::make_shared<Cancellation>(absl::InfiniteFuture());
}

// Occupies one worker until released.
class Blocker {
 public:
  explicit Blocker(WorkQueue& queue, std::shared_ptr<Cancellation> cancellation = NoDeadline()) {
    auto admitted = queue.Admit(0, absl::InfiniteFuture());
    EXPECT_TRUE(std::holds_alternative<Reservation>(admitted));
    std::promise<void> started;
    std::future<void> has_started = started.get_future();
    queue.Enqueue({std::move(cancellation), [&started, released = release_.get_future().share()](
                                                const absl::Status&, absl::Duration) {
                     started.set_value();
                     released.wait();
                   }});
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

RefusalReason ReasonOf(std::variant<Reservation, Refusal> admission) {
  EXPECT_TRUE(std::holds_alternative<Refusal>(admission));
  return std::get<Refusal>(admission).reason;
}

// A job that notes the thread it ran on.
WorkQueue::Job Noting(WorkQueue& queue, std::thread::id& ran_on) {
  EXPECT_TRUE(std::holds_alternative<Reservation>(queue.Admit(1, absl::InfiniteFuture())));
  return {NoDeadline(), [&](const absl::Status& admitted, absl::Duration) {
            EXPECT_TRUE(admitted.ok());
            ran_on = std::this_thread::get_id();
          }};
}

TEST(WorkQueue, LetsTheCallerRunATinyJobWhereAWorkerIsFree) {
  WorkQueue queue({2, 100, 1000});
  Blocker blocker(queue);
  std::thread::id ran_on;
  queue.RunOrEnqueue(Noting(queue, ran_on));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(queue.running(), 1);  // the blocker
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(WorkQueue, ATinyJobWaitsItsTurnWhereNoWorkerIsFree) {
  WorkQueue queue({1, 100, 1000});
  Blocker blocker(queue);
  std::thread::id ran_on;
  queue.RunOrEnqueue(Noting(queue, ran_on));
  EXPECT_EQ(ran_on, std::thread::id());
  EXPECT_EQ(queue.waiting(), 1);
  blocker.Release();
  ASSERT_TRUE(queue.Drain(absl::InfiniteDuration()));
  EXPECT_NE(ran_on, std::thread::id());
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(WorkQueue, RunsEveryJobOnceInOrder) {
  WorkQueue queue({1, 100, 1000});
  std::vector<int> ran;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(std::holds_alternative<Reservation>(queue.Admit(1, absl::InfiniteFuture())));
    queue.Enqueue({NoDeadline(), [&ran, i](const absl::Status& admitted, absl::Duration) {
                     EXPECT_TRUE(admitted.ok());
                     ran.push_back(i);
                   }});
  }
  ASSERT_TRUE(queue.Drain(absl::InfiniteDuration()));
  ASSERT_EQ(ran.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ran[i], i);
}

TEST(WorkQueue, RefusesWhatExceedsItsCapacityAndSaysWhenToRetry) {
  WorkQueue queue({1, 1, 1000});
  Blocker blocker(queue);
  auto waiting = queue.Admit(0, absl::InfiniteFuture());
  ASSERT_TRUE(std::holds_alternative<Reservation>(waiting));
  auto refused = queue.Admit(0, absl::InfiniteFuture());
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kFull);
  EXPECT_GT(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
  queue.Enqueue({NoDeadline(), [](const absl::Status&, absl::Duration) {}});
  blocker.Release();
  EXPECT_TRUE(queue.Drain(absl::InfiniteDuration()));
}

TEST(WorkQueue, CapacityZeroStillServesAFreeWorker) {
  WorkQueue queue({1, 0, 1000});
  EXPECT_TRUE(std::holds_alternative<Reservation>(queue.Admit(0, absl::InfiniteFuture())));
  queue.Enqueue({NoDeadline(), [](const absl::Status&, absl::Duration) {}});
  EXPECT_TRUE(queue.Drain(absl::InfiniteDuration()));
}

TEST(WorkQueue, MemoryIsGivenBackWithTheReservation) {
  WorkQueue queue({2, 10, 100});
  {
    auto held = queue.Admit(60, absl::InfiniteFuture());
    ASSERT_TRUE(std::holds_alternative<Reservation>(held));
    queue.Enqueue({NoDeadline(), [](const absl::Status&, absl::Duration) {}});
    EXPECT_EQ(queue.memory_used_bytes(), 60);
    auto refused = queue.Admit(50, absl::InfiniteFuture());
    ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
    EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kMemory);
    EXPECT_GT(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
  }
  EXPECT_EQ(queue.memory_used_bytes(), 0);
  EXPECT_TRUE(std::holds_alternative<Reservation>(queue.Admit(50, absl::InfiniteFuture())));
  queue.Enqueue({NoDeadline(), [](const absl::Status&, absl::Duration) {}});
}

TEST(WorkQueue, WhatNeverFitsIsNotToldToRetry) {
  WorkQueue queue({1, 10, 100});
  auto refused = queue.Admit(101, absl::InfiniteFuture());
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kMemory);
  EXPECT_EQ(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
}

TEST(WorkQueue, RefusesAPassedDeadline) {
  WorkQueue queue({1, 10, 100});
  EXPECT_EQ(ReasonOf(queue.Admit(0, absl::InfinitePast())), RefusalReason::kDeadline);
}

TEST(WorkQueue, AJobCancelledWhileItWaitsIsDroppedWithoutAWorker) {
  WorkQueue queue({1, 10, 100});
  Blocker blocker(queue);
  ASSERT_TRUE(std::holds_alternative<Reservation>(queue.Admit(0, absl::InfiniteFuture())));
  auto cancellation = NoDeadline();
  absl::Status told;
  queue.Enqueue(
      {cancellation, [&told](const absl::Status& admitted, absl::Duration) { told = admitted; }});
  cancellation->Cancel(absl::CancelledError("enough"));
  queue.DropCancelled();  // runs it here and now
  EXPECT_TRUE(absl::IsCancelled(told)) << told;
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(WorkQueue, AJobThatExpiredInTheQueueIsToldSo) {
  WorkQueue queue({1, 10, 100});
  auto blocker = std::make_unique<Blocker>(queue);
  ASSERT_TRUE(std::holds_alternative<Reservation>(queue.Admit(0, absl::InfiniteFuture())));
  absl::Status told;
  queue.Enqueue({std::make_shared<Cancellation>(absl::InfinitePast()),
                 [&told](const absl::Status& admitted, absl::Duration) { told = admitted; }});
  blocker->Release();
  ASSERT_TRUE(queue.Drain(absl::InfiniteDuration()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
}

TEST(WorkQueue, DrainingRefusesNewWorkAndWaitsForTheOld) {
  WorkQueue queue({1, 10, 100});
  Blocker blocker(queue);
  EXPECT_FALSE(queue.Drain(absl::ZeroDuration()));
  EXPECT_EQ(ReasonOf(queue.Admit(0, absl::InfiniteFuture())), RefusalReason::kDraining);
  blocker.Release();
  EXPECT_TRUE(queue.Drain(absl::InfiniteDuration()));
}

TEST(WorkQueue, CancelAllReachesRunningAndWaitingWork) {
  WorkQueue queue({1, 10, 100});
  auto running = NoDeadline();
  Blocker blocker(queue, running);
  ASSERT_TRUE(std::holds_alternative<Reservation>(queue.Admit(0, absl::InfiniteFuture())));
  absl::Status told;
  queue.Enqueue(
      {NoDeadline(), [&told](const absl::Status& admitted, absl::Duration) { told = admitted; }});
  queue.CancelAll(absl::UnavailableError("draining"));
  EXPECT_TRUE(absl::IsUnavailable(running->Check()));
  EXPECT_TRUE(absl::IsUnavailable(told));
}

TEST(Cancellation, TheFirstReasonHolds) {
  Cancellation cancellation(absl::InfiniteFuture());
  EXPECT_TRUE(cancellation.Check().ok());
  cancellation.Cancel(absl::UnavailableError("first"));
  cancellation.Cancel(absl::CancelledError("second"));
  EXPECT_TRUE(absl::IsUnavailable(cancellation.Check()));
}

TEST(Cancellation, ACancellationAtTheDeadlineIsTheClientsTimer) {
  Cancellation cancellation(absl::InfinitePast());
  cancellation.Cancel(absl::CancelledError("the caller"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(cancellation.Check()));
}

}  // namespace
}  // namespace simgrad::server::scheduling
