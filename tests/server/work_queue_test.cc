#include "server/scheduling/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "server/scheduling/steady_time.h"
#include "tests/server/blocker.h"

namespace simgrad::server::scheduling {
namespace {

using Turn = WorkQueue::Turn;

void Nothing(const absl::Status&, absl::Duration, Turn&) {}

// A job that notes the thread it ran on.
WorkQueue::Job Noting(std::thread::id& ran_on) {
  return JobOf(Named("a"), [&](const absl::Status& admitted, absl::Duration, Turn&) {
    EXPECT_TRUE(admitted.ok());
    ran_on = std::this_thread::get_id();
  });
}

TEST(WorkQueue, LetsTheCallerRunATinyJobWhereAWorkerIsFree) {
  WorkQueue queue({2, 100});
  Blocker blocker(queue);
  std::thread::id ran_on;
  WorkQueue::Job job = Noting(ran_on);
  EXPECT_FALSE(queue.RunOrEnqueue(job).has_value());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(queue.running(), 1);  // the blocker
  EXPECT_EQ(queue.busy(), 1);
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(WorkQueue, ATinyJobWaitsItsTurnWhereNoWorkerIsFree) {
  WorkQueue queue({1, 100});
  Blocker blocker(queue);
  std::thread::id ran_on;
  WorkQueue::Job job = Noting(ran_on);
  EXPECT_FALSE(queue.RunOrEnqueue(job).has_value());
  EXPECT_EQ(ran_on, std::thread::id());
  EXPECT_EQ(queue.waiting(), 1);
  blocker.Release();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_NE(ran_on, std::thread::id());
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(WorkQueue, RunsEveryJobOfACallerOnceInOrder) {
  WorkQueue queue({1, 100});
  const auto caller = Named("a");
  std::vector<int> ran;
  for (int i = 0; i < 50; ++i) {
    Put(queue, JobOf(caller, [&ran, i](const absl::Status& admitted, absl::Duration, Turn&) {
          EXPECT_TRUE(admitted.ok());
          ran.push_back(i);
        }));
  }
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  ASSERT_EQ(ran.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(WorkQueue, RefusesWhatExceedsItsCapacityAndSaysWhenToRetry) {
  WorkQueue queue({1, 1});
  Blocker blocker(queue);
  Put(queue, JobOf(Named("a"), &Nothing));
  WorkQueue::Job job = JobOf(Named("a"), &Nothing);
  const auto refused = queue.Enqueue(job);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->reason, RefusalReason::kFull);
  EXPECT_GT(refused->retry_after, absl::ZeroDuration());
  EXPECT_NE(job.run, nullptr);  // as it was
  blocker.Release();
  EXPECT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
}

TEST(WorkQueue, CapacityZeroStillServesAFreeWorker) {
  WorkQueue queue({1, 0});
  Put(queue, JobOf(Named("a"), &Nothing));
  EXPECT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
}

TEST(WorkQueue, TheRetryHintCountsWorkThatRuns) {
  WorkQueue queue({1, 10});
  const absl::Time start = absl::Now();
  Blocker blocker(queue);
  // No run has ended, and yet the hint grows with how long this one takes.
  while (absl::Now() - start < absl::Milliseconds(200)) std::this_thread::yield();
  EXPECT_GE(queue.RetryAfter(), absl::Milliseconds(100));
}

TEST(WorkQueue, AJobCancelledWhileItWaitsIsDroppedWithoutAWorker) {
  WorkQueue queue({1, 10});
  Blocker blocker(queue);
  auto cancellation = NoDeadline();
  absl::Status told;
  Put(queue, JobOf(
                 Named("a"),
                 [&told](const absl::Status& admitted, absl::Duration, Turn&) { told = admitted; },
                 cancellation));
  cancellation->Cancel(absl::CancelledError("enough"));
  queue.DropCancelled();  // runs it here and now
  EXPECT_TRUE(absl::IsCancelled(told)) << told;
  EXPECT_EQ(queue.waiting(), 0);
  EXPECT_EQ(queue.busy(), 1);
}

TEST(Cancellation, ADeadlineIsATimeOfTheSteadyClock) {
  EXPECT_TRUE(Cancellation(SteadyNow() + absl::Minutes(1)).Check().ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(Cancellation(SteadyNow()).Check()));
  // A caller whose own timer fires a little earlier.
  Cancellation almost(SteadyNow() + absl::Milliseconds(20));
  almost.Cancel(absl::CancelledError("it left"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(almost.Check()));
  Cancellation early(SteadyNow() + absl::Minutes(1));
  early.Cancel(absl::CancelledError("it left"));
  EXPECT_TRUE(absl::IsCancelled(early.Check()));
}

TEST(WorkQueue, AJobThatExpiredInTheQueueIsToldSo) {
  WorkQueue queue({1, 10});
  auto blocker = std::make_unique<Blocker>(queue);
  absl::Status told;
  Put(queue, JobOf(
                 Named("a"),
                 [&told](const absl::Status& admitted, absl::Duration, Turn&) { told = admitted; },
                 std::make_shared<Cancellation>(absl::InfinitePast())));
  blocker->Release();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
}

TEST(WorkQueue, CancelAllReachesRunningAndWaitingWork) {
  WorkQueue queue({1, 10});
  auto running = NoDeadline();
  Blocker blocker(queue, running);
  absl::Status told;
  Put(queue, JobOf(Named("a"), [&told](const absl::Status& admitted, absl::Duration, Turn&) {
        told = admitted;
      }));
  queue.CancelAll(absl::UnavailableError("draining"));
  EXPECT_TRUE(absl::IsUnavailable(running->Check()));
  EXPECT_TRUE(absl::IsUnavailable(told));
}

TEST(WorkQueue, CancelAllReachesWorkOfACallWhoseFirstJobHasEnded) {
  WorkQueue queue({2, 10});
  const auto of_call = NoDeadline();
  auto preparation = std::make_unique<Blocker>(queue, of_call);
  Blocker work(queue, of_call);
  preparation->Release();
  while (queue.running() > 1) std::this_thread::yield();
  queue.CancelAll(absl::UnavailableError("draining"));
  EXPECT_TRUE(absl::IsUnavailable(of_call->Check()));
}

// ---- Callers ----

// Runs jobs that end when told to, one at a time, and says whose they were.
class Series {
 public:
  explicit Series(WorkQueue& queue) : queue_(queue) {}
  void Add(const std::shared_ptr<Caller>& caller, absl::Duration takes) {
    Put(queue_, JobOf(caller, [this, caller, takes](const absl::Status&, absl::Duration, Turn&) {
          const absl::Time end = absl::Now() + takes;
          while (absl::Now() < end) std::this_thread::yield();
          order_ += caller->name();
        }));
  }
  const std::string& order() const { return order_; }

 private:
  WorkQueue& queue_;
  std::string order_;
};

TEST(WorkQueue, ACallerWithOneRequestIsNotBehindTheManyOfAnother) {
  WorkQueue queue({1, 100});
  auto blocker = std::make_unique<Blocker>(queue);
  Series series(queue);
  const auto many = Named("m");
  for (int i = 0; i < 60; ++i) series.Add(many, absl::Milliseconds(1));
  series.Add(Named("o"), absl::Milliseconds(1));
  blocker.reset();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_LE(series.order().find('o'), 2u) << series.order();
}

TEST(WorkQueue, CallersShareTheWorkersByWeightWhateverTheirNumberOfRequests) {
  WorkQueue queue({1, 1000});
  auto blocker = std::make_unique<Blocker>(queue);
  Series series(queue);
  const auto light = Named("l", 1.0);
  const auto heavy = Named("h", 3.0);
  for (int i = 0; i < 300; ++i) series.Add(light, absl::Milliseconds(1));
  for (int i = 0; i < 90; ++i) series.Add(heavy, absl::Milliseconds(1));
  blocker.reset();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  // Of the first 80 jobs three quarters are the heavy caller's; jobs take about as long as each
  // other.
  const std::string first = series.order().substr(0, 80);
  const auto heavies = std::count(first.begin(), first.end(), 'h');
  EXPECT_GE(heavies, 45) << first;
  EXPECT_LE(heavies, 75) << first;
}

TEST(WorkQueue, ACallerThatWasAwayHasSavedNothingUp) {
  WorkQueue queue({1, 1000});
  Series series(queue);
  const auto busy = Named("b");
  for (int i = 0; i < 20; ++i) series.Add(busy, absl::Milliseconds(2));
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  auto blocker = std::make_unique<Blocker>(queue, NoDeadline(), busy);
  Series later(queue);
  const auto fresh = Named("f");
  for (int i = 0; i < 20; ++i) later.Add(busy, absl::Milliseconds(1));
  for (int i = 0; i < 20; ++i) later.Add(fresh, absl::Milliseconds(1));
  blocker.reset();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  const std::string first = later.order().substr(0, 20);
  EXPECT_GE(std::count(first.begin(), first.end(), 'b'), 4) << first;
}

TEST(WorkQueue, AFullQueueMakesRoomForACallerWithLess) {
  WorkQueue queue({1, 4});
  Blocker blocker(queue);
  const auto many = Named("many");
  int refused = 0;
  for (int i = 0; i < 4; ++i) {
    WorkQueue::Job job = JobOf(many, &Nothing);
    job.make_room = [&refused](const Refusal& refusal) {
      EXPECT_EQ(refusal.reason, RefusalReason::kFull);
      EXPECT_GT(refusal.retry_after, absl::ZeroDuration());
      ++refused;
    };
    Put(queue, std::move(job));
  }
  const auto few = Named("few");
  EXPECT_FALSE(queue.MakeRoomFor(*many, 0));
  EXPECT_TRUE(queue.MakeRoomFor(*few, 0));
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(queue.waiting(), 3);
  Put(queue, JobOf(few, &Nothing));
  // Two would be more than its part.
  EXPECT_TRUE(queue.MakeRoomFor(*few, 0));
  Put(queue, JobOf(few, &Nothing));
  EXPECT_FALSE(queue.MakeRoomFor(*few, 0));
  EXPECT_EQ(refused, 2);
}

// ---- Turns ----

TEST(WorkQueue, AJobThatPausesGivesItsWorkerToOthers) {
  WorkQueue queue({1, 10});
  std::promise<void> paused, go_on;
  bool resumed = false;
  Put(queue, JobOf(Named("slow"), [&](const absl::Status&, absl::Duration, Turn& turn) {
        turn.Pause();
        paused.set_value();
        go_on.get_future().wait();
        turn.Resume();
        resumed = true;
      }));
  paused.get_future().wait();
  EXPECT_EQ(queue.running(), 1);
  EXPECT_EQ(queue.busy(), 0);
  std::promise<void> ran;
  Put(queue,
      JobOf(Named("quick"), [&](const absl::Status&, absl::Duration, Turn&) { ran.set_value(); }));
  ran.get_future().wait();  // on the only worker
  EXPECT_FALSE(resumed);
  go_on.set_value();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(resumed);
}

// One job after another pauses, and each frees the one worker for the next.
TEST(WorkQueue, OfTooManyPausedJobsTheLongestOfTheCallerWithMostIsGivenUp) {
  WorkQueue queue({.workers = 1, .capacity = 100, .most_paused = 4});
  const auto few = Named("few"), many = Named("many");
  std::vector<std::string> given_up;  // written by the thread of the job that pauses
  const auto pause = [&](const std::shared_ptr<Caller>& caller, const std::string& name) {
    const auto ends = std::make_shared<Cancellation>(absl::InfiniteFuture());
    const auto paused = std::make_shared<std::promise<void>>();
    WorkQueue::Job job =
        JobOf(caller, [ends, paused](const absl::Status&, absl::Duration, Turn& turn) {
          turn.Pause();
          paused->set_value();
          while (ends->Check().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          turn.Resume();
        });
    job.cancellation = ends;
    job.give_up = [&given_up, ends, name] {
      given_up.push_back(name);
      ends->Cancel(absl::ResourceExhaustedError("given up"));
    };
    Put(queue, std::move(job));
    paused->get_future().wait();  // on the one worker, whatever the number of those that are paused
  };
  pause(few, "few 1");
  for (const char* name : {"many 1", "many 2", "many 3"}) pause(many, name);
  EXPECT_TRUE(given_up.empty());
  pause(few, "few 2");
  EXPECT_EQ(given_up, std::vector<std::string>{"many 1"});
  pause(many, "many 4");
  EXPECT_EQ(given_up, (std::vector<std::string>{"many 1", "many 2"}));
  EXPECT_EQ(queue.busy(), 0);
  queue.CancelAll(absl::CancelledError("the test ends"));
  EXPECT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
}

TEST(WorkQueue, AJobThatGoesOnWaitsForAWorker) {
  WorkQueue queue({1, 10});
  std::promise<void> paused, go_on;
  std::atomic<bool> resumed = false;
  Put(queue, JobOf(Named("slow"), [&](const absl::Status&, absl::Duration, Turn& turn) {
        turn.Pause();
        paused.set_value();
        go_on.get_future().wait();
        turn.Resume();
        resumed = true;
      }));
  paused.get_future().wait();
  Blocker blocker(queue);
  go_on.set_value();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(resumed);
  EXPECT_EQ(queue.busy(), 1);
  blocker.Release();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(resumed);
}

TEST(WorkQueue, AJobThatIsCancelledGoesOnWithoutAWorkerToEnd) {
  WorkQueue queue({1, 10});
  std::promise<void> paused, go_on, resumed;
  auto cancellation = NoDeadline();
  Put(queue, JobOf(
                 Named("slow"),
                 [&](const absl::Status&, absl::Duration, Turn& turn) {
                   turn.Pause();
                   paused.set_value();
                   go_on.get_future().wait();
                   turn.Resume();
                   resumed.set_value();
                 },
                 cancellation));
  paused.get_future().wait();
  Blocker blocker(queue);
  go_on.set_value();
  cancellation->Cancel(absl::CancelledError("left"));
  queue.DropCancelled();
  resumed.get_future().wait();  // while the blocker has the worker
  blocker.Release();
  EXPECT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_EQ(queue.busy(), 0);
}

TEST(WorkQueue, LongWorkLetsAnotherCallerGoFirstBetweenItsChunks) {
  WorkQueue queue({1, 10});
  std::atomic<bool> other_ran = false;
  int chunks = 0;
  std::promise<void> started;
  Put(queue, JobOf(Named("long"), [&](const absl::Status&, absl::Duration, Turn& turn) {
        started.set_value();
        // Ends only because the other one runs in between.
        while (!other_ran) {
          turn.LetOthers();
          ++chunks;
          std::this_thread::yield();
        }
      }));
  started.get_future().wait();
  Put(queue,
      JobOf(Named("other"), [&](const absl::Status&, absl::Duration, Turn&) { other_ran = true; }));
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_GT(chunks, 0);
}

TEST(WorkQueue, LongWorkKeepsItsWorkerBeforeOthersOfItsOwnCaller) {
  WorkQueue queue({1, 10});
  const auto caller = Named("a");
  std::atomic<bool> other_ran = false;
  std::promise<void> started, enqueued;
  Put(queue, JobOf(caller, [&](const absl::Status&, absl::Duration, Turn& turn) {
        started.set_value();
        enqueued.get_future().wait();
        for (int i = 0; i < 100; ++i) turn.LetOthers();
        EXPECT_FALSE(other_ran);
      }));
  started.get_future().wait();
  Put(queue, JobOf(caller, [&](const absl::Status&, absl::Duration, Turn&) { other_ran = true; }));
  enqueued.set_value();
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(other_ran);
}

TEST(WorkQueue, ManyJobsOfManyCallersThatPauseAndYieldAllEnd) {
  WorkQueue queue({3, 100000});
  std::atomic<int> ended = 0;
  constexpr int kJobs = 2000;
  for (int i = 0; i < kJobs; ++i) {
    auto cancellation = NoDeadline();
    Put(queue, JobOf(
                   Named(std::string(1, static_cast<char>('a' + i % 7))),
                   [&ended, i](const absl::Status&, absl::Duration, Turn& turn) {
                     for (int k = 0; k < 5; ++k) {
                       turn.LetOthers();
                       if (i % 3 == 0) {
                         turn.Pause();
                         turn.Resume();
                       }
                     }
                     ++ended;
                   },
                   cancellation));
    if (i % 11 == 0) {
      cancellation->Cancel(absl::CancelledError("left"));
      queue.DropCancelled();
    }
  }
  ASSERT_TRUE(queue.AwaitIdle(absl::InfiniteDuration()));
  EXPECT_EQ(ended, kJobs);
  EXPECT_EQ(queue.busy(), 0);
  EXPECT_EQ(queue.waiting(), 0);
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
