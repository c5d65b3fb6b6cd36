// Arrivals, memory and callers' own limits.
#include "server/scheduling/scheduler.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "absl/time/clock.h"

namespace simgrad::server::scheduling {
namespace {

using Arrival = Scheduler::Arrival;
using Reservation = MemoryBudget::Reservation;

RefusalReason ReasonOf(const std::variant<Arrival, Refusal>& arrival) {
  EXPECT_TRUE(std::holds_alternative<Refusal>(arrival));
  return std::get<Refusal>(arrival).reason;
}

TEST(Scheduler, RefusesArrivalsBeyondItsCapacityUntilOneBegins) {
  Scheduler scheduler({1, 4, 1000});
  const auto caller = scheduler.callers().Find("a");
  std::vector<std::variant<Arrival, Refusal>> arrivals;
  for (int i = 0; i < 5; ++i) {  // one place more is left to small work
    arrivals.push_back(scheduler.Arrive(caller, absl::InfiniteFuture()));
    ASSERT_TRUE(std::holds_alternative<Arrival>(arrivals.back()));
  }
  const auto refused = scheduler.Arrive(caller, absl::InfiniteFuture());
  EXPECT_EQ(ReasonOf(refused), RefusalReason::kFull);
  EXPECT_GT(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
  std::get<Arrival>(arrivals[0]).Begin();
  EXPECT_TRUE(std::holds_alternative<Arrival>(scheduler.Arrive(caller, absl::InfiniteFuture())));
}

TEST(Scheduler, RefusesAPassedDeadline) {
  Scheduler scheduler({1, 4, 1000});
  EXPECT_EQ(ReasonOf(scheduler.Arrive(scheduler.callers().Find("a"), absl::InfinitePast())),
            RefusalReason::kDeadline);
}

TEST(Scheduler, DrainingRefusesArrivalsAndWaitsForTheWorkOfOthers) {
  Scheduler scheduler({1, 4, 1000});
  const auto caller = scheduler.callers().Find("a");
  auto arrival = std::get<Arrival>(scheduler.Arrive(caller, absl::InfiniteFuture()));
  scheduler.StopArrivals();
  EXPECT_EQ(ReasonOf(scheduler.Arrive(caller, absl::InfiniteFuture())), RefusalReason::kDraining);
  EXPECT_FALSE(scheduler.AwaitIdle(absl::ZeroDuration()));
  arrival.EndWork();
  EXPECT_TRUE(scheduler.AwaitIdle(absl::ZeroDuration()));
  EXPECT_EQ(caller->requests_in_flight(), 1);  // its reader has not taken all
}

// `queue` of `scheduler` is full of one caller's requests, of which one has each worker.
void ExpectRoomForAnother(Scheduler& scheduler, WorkQueue& queue) {
  const auto many = scheduler.callers().Find("many");
  std::promise<void> release;
  const auto released = release.get_future().share();
  const auto workers = static_cast<size_t>(queue.workers());
  std::vector<Arrival> arrivals(5 + workers);
  int refused = 0;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    arrivals[i] = std::get<Arrival>(scheduler.Arrive(many, absl::InfiniteFuture()));
    WorkQueue::Job job;
    job.caller = many;
    job.cancellation = std::make_shared<Cancellation>(absl::InfiniteFuture());
    job.run = [released](const absl::Status&, absl::Duration, WorkQueue::Turn&) {
      released.wait();
    };
    job.make_room = [&, i](const Refusal&) {
      ++refused;
      arrivals[i].EndWork();
    };
    EXPECT_FALSE(queue.Enqueue(job).has_value());
    if (i < workers) arrivals[i].Begin();
  }
  EXPECT_TRUE(scheduler.FullFor(*many).has_value());
  EXPECT_EQ(ReasonOf(scheduler.Arrive(many, absl::InfiniteFuture())), RefusalReason::kFull);
  const auto few = scheduler.callers().Find("few");
  EXPECT_FALSE(scheduler.FullFor(*few).has_value());
  EXPECT_TRUE(std::holds_alternative<Arrival>(scheduler.Arrive(few, absl::InfiniteFuture())));
  EXPECT_EQ(refused, 1);
  release.set_value();
  queue.AwaitIdle(absl::InfiniteDuration());
}

TEST(Scheduler, AFullQueueMakesRoomForAnotherCaller) {
  Scheduler of_lane({1, 4, 1000});
  ExpectRoomForAnother(of_lane, of_lane.lane(Lane::kSmall));
  Scheduler of_preparation({1, 4, 1000});
  ExpectRoomForAnother(of_preparation, of_preparation.preparation());
}

TEST(Scheduler, MemoryIsGivenBackWithTheReservation) {
  Scheduler scheduler({2, 10, 100});
  const auto caller = scheduler.callers().Find("a");
  {
    auto held = scheduler.Reserve(60, MemoryUse::kWork, caller);
    ASSERT_TRUE(std::holds_alternative<Reservation>(held));
    EXPECT_EQ(scheduler.memory_used_bytes(), 60);
    const auto refused = scheduler.Reserve(50, MemoryUse::kUpload, caller);
    ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
    EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kMemory);
    EXPECT_GT(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
    EXPECT_FALSE(std::get<Reservation>(held).Grow(41));
    EXPECT_TRUE(std::get<Reservation>(held).Grow(40));
    EXPECT_EQ(scheduler.memory_used_bytes(), 100);
  }
  EXPECT_EQ(scheduler.memory_used_bytes(), 0);
}

TEST(Scheduler, WhatNeverFitsIsNotToldToRetry) {
  Scheduler scheduler({1, 10, 100});
  const auto refused = scheduler.Reserve(101, MemoryUse::kWork, scheduler.callers().Find("a"));
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
  EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kTooLarge);
}

TEST(Scheduler, WhatNeverFitsBesideWhatARequestHoldsIsNotToldToRetry) {
  Scheduler scheduler({1, 10, 100});
  const auto caller = scheduler.callers().Find("a");
  const auto upload = scheduler.Reserve(20, MemoryUse::kUpload, caller);
  ASSERT_TRUE(std::holds_alternative<Reservation>(upload));
  const auto refused = scheduler.Reserve(90, MemoryUse::kWork, caller, 20);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).reason, RefusalReason::kTooLarge);
  EXPECT_EQ(std::get<Refusal>(refused).retry_after, absl::ZeroDuration());
}

// Its capacity, which the large lane has for itself; the whole queue has room for a quarter more.
TEST(Scheduler, AFullLaneMakesRoomForACallerThatHasLessInIt) {
  Scheduler scheduler({1, 4, 1000});
  WorkQueue& lane = scheduler.lane(Lane::kLarge);
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::vector<std::string> given_up;
  const auto enqueue = [&](const std::string& name) {
    WorkQueue::Job job;
    job.caller = scheduler.callers().Find(name);
    job.cancellation = std::make_shared<Cancellation>(absl::InfiniteFuture());
    job.run = [released](const absl::Status&, absl::Duration, WorkQueue::Turn&) {
      released.wait();
    };
    job.make_room = [&given_up, name](const Refusal&) { given_up.push_back(name); };
    return scheduler.Enqueue(lane, job);
  };
  for (int i = 0; i < 4 + lane.workers(); ++i) EXPECT_FALSE(enqueue("many")) << i;
  const auto refused = enqueue("many");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, RefusalReason::kFull);
  EXPECT_FALSE(enqueue("few"));
  EXPECT_FALSE(enqueue("few"));
  EXPECT_EQ(given_up, (std::vector<std::string>{"many", "many"}));
  EXPECT_TRUE(enqueue("few")) << "both have two";
  release.set_value();
  lane.AwaitIdle(absl::InfiniteDuration());
}

TEST(MemoryBudget, CachesAreEmptiedForWork) {
  MemoryBudget budget(100);
  auto cached = budget.Reserve(80, MemoryUse::kCache);
  ASSERT_TRUE(cached.has_value());
  int asked = 0;
  budget.SetRelief([&](int64_t bytes) {
    EXPECT_EQ(bytes, 30);  // no more than is missing
    ++asked;
    cached.reset();
  });
  EXPECT_FALSE(budget.Reserve(50, MemoryUse::kCache).has_value());
  EXPECT_EQ(asked, 0);  // one cache does not empty another
  EXPECT_TRUE(budget.Reserve(50, MemoryUse::kWork).has_value());
  EXPECT_EQ(asked, 1);
}

TEST(MemoryBudget, NothingIsGivenUpForWhatDoesNotFitWithoutItEither) {
  MemoryBudget budget(100);
  const auto work = budget.Reserve(60, MemoryUse::kWork);
  const auto cached = budget.Reserve(30, MemoryUse::kCache);
  ASSERT_TRUE(work.has_value() && cached.has_value());
  budget.SetRelief([&](int64_t) { ADD_FAILURE() << "asked in vain"; });
  EXPECT_FALSE(budget.Reserve(50, MemoryUse::kUpload).has_value());
}

TEST(MemoryBudget, ReliefIsAskedForMoreAsLongAsItGivesAny) {
  MemoryBudget budget(100);
  std::vector<Reservation> cached;
  for (int i = 0; i < 4; ++i) cached.push_back(*budget.Reserve(20, MemoryUse::kCache));
  budget.SetRelief([&](int64_t) { cached.pop_back(); });
  EXPECT_TRUE(budget.Reserve(50, MemoryUse::kWork).has_value());
  EXPECT_EQ(cached.size(), 2u);
  int asked = 0;
  budget.SetRelief([&](int64_t) { ++asked; });  // what it would give is still read
  EXPECT_FALSE(budget.Reserve(80, MemoryUse::kWork).has_value());
  EXPECT_EQ(asked, 1);
}

TEST(MemoryBudget, AReservationGoesOnAsMemoryOfAnotherUse) {
  MemoryBudget budget(100);
  const auto caller = std::make_shared<Caller>("a", CallerLimits());
  auto held = *budget.Reserve(60, MemoryUse::kUpload, caller);
  held.TurnInto(MemoryUse::kCache);
  EXPECT_EQ(budget.used(MemoryUse::kUpload), 0);
  EXPECT_EQ(budget.used(MemoryUse::kCache), 60);
  EXPECT_EQ(caller->memory_bytes(), 0);
  EXPECT_EQ(budget.free(), 40);
  held = Reservation();
  EXPECT_EQ(budget.free(), 100);
}

// ---- Limits of one caller ----

TEST(Caller, HasAsManyRequestsInFlightAsItMay) {
  Scheduler scheduler({1, 10, 100});
  CallerLimits limits;
  limits.requests_in_flight = 2;
  const auto caller = scheduler.callers().Find("a", limits);
  auto first = scheduler.Arrive(caller, absl::InfiniteFuture());
  auto second = scheduler.Arrive(caller, absl::InfiniteFuture());
  EXPECT_EQ(ReasonOf(scheduler.Arrive(caller, absl::InfiniteFuture())), RefusalReason::kInFlight);
  EXPECT_TRUE(std::holds_alternative<Arrival>(
      scheduler.Arrive(scheduler.callers().Find("b"), absl::InfiniteFuture())));
  first = Refusal();
  EXPECT_TRUE(std::holds_alternative<Arrival>(scheduler.Arrive(caller, absl::InfiniteFuture())));
}

TEST(Caller, PaysItsInstanceStepsBackAtItsRate) {
  CallerLimits limits;
  limits.instance_steps_per_second = 100;
  Caller caller("a", limits);
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_EQ(caller.TakeSteps(250, start), absl::ZeroDuration());  // a second's worth, and a debt
  caller.EndSteps(250, 250);
  const absl::Duration wait = caller.TakeSteps(1, start);
  EXPECT_GE(wait, absl::Milliseconds(1500));
  EXPECT_LE(wait, absl::Milliseconds(1510));
  EXPECT_GT(caller.TakeSteps(1, start + absl::Milliseconds(1400)), absl::ZeroDuration());
  EXPECT_EQ(caller.TakeSteps(1, start + wait), absl::ZeroDuration());
}

TEST(Caller, PaysNothingForWorkThatNeverRan) {
  CallerLimits limits;
  limits.instance_steps_per_second = 100;
  Caller caller("a", limits);
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(caller.TakeSteps(250, start), absl::ZeroDuration());
    caller.EndSteps(250, 0);
  }
  EXPECT_EQ(caller.TakeSteps(100, start), absl::ZeroDuration());
  EXPECT_GT(caller.TakeSteps(1, start), absl::ZeroDuration());
}

TEST(Caller, IsToldToComeBackSoonForWhatItsWorkMayGiveBack) {
  CallerLimits limits;
  limits.instance_steps_per_second = 100;
  Caller caller("a", limits);
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_EQ(caller.TakeSteps(50, start), absl::ZeroDuration());
  EXPECT_EQ(caller.TakeSteps(1e6, start), absl::ZeroDuration());
  EXPECT_EQ(caller.TakeSteps(1, start), absl::Seconds(1));
  caller.EndSteps(50, 50);
  EXPECT_EQ(caller.TakeSteps(1, start), absl::Seconds(1));
  caller.EndSteps(1e6, 350);
  const absl::Duration wait = caller.TakeSteps(1, start);
  EXPECT_GE(wait, absl::Seconds(3));
  EXPECT_LE(wait, absl::Milliseconds(3010));
}

TEST(Caller, HasItsShareOfTheMemory) {
  Scheduler scheduler({1, 10, 1000});
  CallerLimits limits;
  limits.memory_bytes = 100;
  const auto caller = scheduler.callers().Find("a", limits);
  const auto never = scheduler.Reserve(101, MemoryUse::kWork, caller);
  ASSERT_TRUE(std::holds_alternative<Refusal>(never));
  EXPECT_EQ(std::get<Refusal>(never).reason, RefusalReason::kShare);
  EXPECT_EQ(std::get<Refusal>(never).retry_after, absl::ZeroDuration());
  const auto held = scheduler.Reserve(80, MemoryUse::kWork, caller);
  EXPECT_TRUE(std::holds_alternative<Reservation>(held));
  const auto later = scheduler.Reserve(30, MemoryUse::kWork, caller);
  ASSERT_TRUE(std::holds_alternative<Refusal>(later));
  EXPECT_EQ(std::get<Refusal>(later).reason, RefusalReason::kShare);
  EXPECT_GT(std::get<Refusal>(later).retry_after, absl::ZeroDuration());
  EXPECT_TRUE(std::holds_alternative<Reservation>(
      scheduler.Reserve(900, MemoryUse::kWork, scheduler.callers().Find("b"))));
}

TEST(Callers, AreOneForAName) {
  Callers callers;
  CallerLimits limits;
  limits.weight = 2;
  const auto caller = callers.Find("a");
  EXPECT_EQ(callers.Find("a", limits), caller);
  EXPECT_EQ(caller->weight(), 2);  // as they are now
  EXPECT_NE(callers.Find("b"), caller);
}

TEST(Callers, ThatHoldNothingAreForgottenWhereThereAreMany) {
  Callers callers(10);
  const auto kept = callers.Find("kept");
  ASSERT_TRUE(kept->Enter());
  for (int i = 0; i < 1000; ++i) callers.Find(std::to_string(i));
  EXPECT_LE(callers.size(), 11u);
  EXPECT_EQ(callers.Find("kept"), kept);
  kept->Leave();
}

}  // namespace
}  // namespace simgrad::server::scheduling
