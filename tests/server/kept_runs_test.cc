// Handles of kept rollouts: whose they are, how long they live, what goes first.
#include "server/service/kept_runs.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "server/scheduling/memory_budget.h"
#include "server/validation/request_error.h"

namespace simgrad::server::service {
namespace {

constexpr int64_t kRunBytes = 1000;

KeptRuns::Kept SomeRun(int64_t bytes = kRunBytes,
                       std::shared_ptr<const sim::NumericalProgram> program = nullptr) {
  auto run = std::make_shared<sim::KeptRun>();
  run->bytes = bytes;
  run->batch.program = std::move(program);
  return {run, std::make_shared<const v1::RolloutSpec>()};
}

class KeptRunsTest : public ::testing::Test {
 protected:
  std::unique_ptr<KeptRuns> Store(int64_t max_bytes) {
    KeptRunsOptions options;
    options.replica = "replica-3";
    options.ttl = absl::Minutes(10);
    options.max_bytes = max_bytes;
    options.lease = [this](int64_t bytes) -> std::shared_ptr<void> {
      if (before_lease_) before_lease_();
      auto reservation = memory_.Reserve(bytes, scheduling::MemoryUse::kKept);
      if (!reservation) return nullptr;
      return std::make_shared<scheduling::MemoryBudget::Reservation>(*std::move(reservation));
    };
    options.free_bytes = [this] { return memory_.free(); };
    options.on_lost = [this](KeptLost why) { ++lost_[static_cast<size_t>(why)]; };
    options.now = [this] { return now_; };
    return std::make_unique<KeptRuns>(std::move(options));
  }
  int64_t Held() const { return memory_.used(scheduling::MemoryUse::kKept); }

  scheduling::MemoryBudget memory_{100'000};
  std::function<void()> before_lease_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::array<int, 3> lost_{};
};

TEST_F(KeptRunsTest, AHandleBearsTheReplicasNameAndAtLeast128Bits) {
  const auto store = Store(50'000);
  const std::string handle = *store->Keep(SomeRun(), "ada");
  EXPECT_EQ(handle.rfind("replica-3.", 0), 0u) << handle;
  EXPECT_EQ(handle.size(), std::string("replica-3.").size() + 32);
  EXPECT_NE(handle, *store->Keep(SomeRun(), "ada"));
}

TEST_F(KeptRunsTest, AStrangerIsToldWhatAnUnknownHandleIsTold) {
  const auto store = Store(50'000);
  const std::string handle = *store->Keep(SomeRun(), "ada");
  EXPECT_TRUE(store->Find(handle, "ada").ok());
  const absl::Status stranger = store->Find(handle, "eve").status();
  EXPECT_EQ(stranger.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(validation::ReasonOf(stranger), "TAPE_GONE");
  EXPECT_EQ(stranger, store->Find("replica-3.00", "eve").status());
  now_ += absl::Minutes(11);
  EXPECT_EQ(stranger, store->Find(handle, "ada").status());
}

TEST_F(KeptRunsTest, ARunLivesItsTimeAfterItsLastUse) {
  const auto store = Store(50'000);
  const std::string handle = *store->Keep(SomeRun(), "ada");
  now_ += absl::Minutes(9);
  EXPECT_TRUE(store->Find(handle, "ada").ok());
  now_ += absl::Minutes(9);
  EXPECT_TRUE(store->Find(handle, "ada").ok());
  now_ += absl::Minutes(10);
  store->DropExpired();
  EXPECT_EQ(store->use().entries, 0);
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(lost_[static_cast<size_t>(KeptLost::kTtl)], 1);
}

TEST_F(KeptRunsTest, TheLeastRecentlyUsedGoesForANewerOne) {
  const auto store = Store(5 * kRunBytes);
  std::vector<std::string> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(*store->Keep(SomeRun(), "ada"));
  EXPECT_TRUE(store->Find(handles[0], "ada").ok());
  handles.push_back(*store->Keep(SomeRun(2 * kRunBytes - 500), "ada"));
  EXPECT_TRUE(store->Find(handles[0], "ada").ok());
  EXPECT_FALSE(store->Find(handles[1], "ada").ok());
  EXPECT_GE(lost_[static_cast<size_t>(KeptLost::kLimit)], 1);
  EXPECT_FALSE(store->Keep(SomeRun(100 * kRunBytes), "ada")) << "larger than all may be";
}

TEST_F(KeptRunsTest, ARunThatCannotBeKeptPushesOutNone) {
  const auto store = Store(90'000);
  const std::string read = *store->Keep(SomeRun(20'000), "ada");
  const std::string idle = *store->Keep(SomeRun(10'000), "ada");
  auto work = memory_.Reserve(50'000, scheduling::MemoryUse::kWork);
  ASSERT_TRUE(work.has_value());
  const absl::StatusOr<KeptRuns::Kept> reversal = store->Find(read, "ada");
  // What a reversal reads gives no memory back.
  EXPECT_FALSE(store->Keep(SomeRun(35'000), "ada"));
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_TRUE(store->Keep(SomeRun(22'000), "ada"));  // in the place of the idle one
  EXPECT_FALSE(store->Find(idle, "ada").ok());
  EXPECT_TRUE(store->Find(read, "ada").ok());
}

TEST_F(KeptRunsTest, RunsThatAreKeptAtOnceStayWithinTheLimitTogether) {
  constexpr int kCallers = 4;
  const auto other = Store(50'000);
  EXPECT_TRUE(other->Keep(SomeRun(), "ada"));
  const auto store = Store(other->use().bytes * 5 / 2);
  // Each has looked for room before any takes memory.
  std::barrier all_looked(kCallers);
  before_lease_ = [&] { all_looked.arrive_and_wait(); };
  std::vector<std::jthread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] { EXPECT_TRUE(store->Keep(SomeRun(), "ada")); });
  }
  callers.clear();
  EXPECT_LE(store->use().bytes, store->max_bytes());
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_EQ(lost_[static_cast<size_t>(KeptLost::kLimit)], kCallers - 2);
}

TEST_F(KeptRunsTest, RunsOfOneProgramHoldItOnce) {
  constexpr int64_t kProgramBytes = 20'000;
  const auto program = [] {
    auto numerical = std::make_shared<sim::NumericalProgram>();
    numerical->text = std::string(kProgramBytes, '.');
    return numerical;
  };
  const auto store = Store(60'000);
  const auto shared = program();
  std::vector<std::string> handles;
  handles.push_back(*store->Keep(SomeRun(kRunBytes, shared), "ada"));
  const int64_t one = store->use().bytes;
  EXPECT_GE(one, kProgramBytes + kRunBytes);
  for (int i = 1; i < 10; ++i) handles.push_back(*store->Keep(SomeRun(kRunBytes, shared), "ada"));
  EXPECT_EQ(store->use().entries, 10);
  const int64_t another = (store->use().bytes - one) / 9;
  EXPECT_GE(another, kRunBytes);
  EXPECT_LT(another, 2 * kRunBytes);
  EXPECT_EQ(Held(), store->use().bytes);
  for (const std::string& handle : handles) EXPECT_TRUE(store->Find(handle, "ada").ok());
  // The program comes free with the last of its runs.
  EXPECT_EQ(store->Relieve(9 * another), 9 * another);
  EXPECT_EQ(store->use().bytes, one);
  EXPECT_EQ(Held(), one);
  // Two others have no room beside it: it goes for the second.
  EXPECT_TRUE(store->Keep(SomeRun(kRunBytes, program()), "ada"));
  EXPECT_TRUE(store->Find(handles.back(), "ada").ok());
  EXPECT_TRUE(store->Keep(SomeRun(kRunBytes, program()), "ada"));
  EXPECT_TRUE(store->Find(handles.back(), "ada").ok());
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_EQ(Held(), store->use().bytes);
  store->Relieve(60'000);
  EXPECT_EQ(store->use().bytes, 0);
  EXPECT_EQ(Held(), 0);
}

TEST_F(KeptRunsTest, ARunThatNeedsTheProgramOfTheOthersCountsOnTheirOwnBytesAlone) {
  auto program = std::make_shared<sim::NumericalProgram>();
  program->text = std::string(20'000, '.');
  const auto store = Store(90'000);
  const std::string idle = *store->Keep(SomeRun(10'000, program), "ada");
  auto work = memory_.Reserve(60'000, scheduling::MemoryUse::kWork);
  ASSERT_TRUE(work.has_value());
  EXPECT_FALSE(store->Keep(SomeRun(25'000, program), "ada"));
  EXPECT_TRUE(store->Find(idle, "ada").ok()) << "it gave way to one that was not kept";
  EXPECT_TRUE(store->Keep(SomeRun(15'000, program), "ada"));
  EXPECT_FALSE(store->Find(idle, "ada").ok());
}

TEST_F(KeptRunsTest, AProgramStaysChargedWhileAReversalReadsIt) {
  auto program = std::make_shared<sim::NumericalProgram>();
  program->text = std::string(20'000, '.');
  const auto store = Store(60'000);
  const std::string read = *store->Keep(SomeRun(kRunBytes, program), "ada");
  const std::string idle = *store->Keep(SomeRun(kRunBytes, program), "ada");
  absl::StatusOr<KeptRuns::Kept> reversal = store->Find(read, "ada");
  EXPECT_LT(store->Relieve(60'000), 20'000);
  EXPECT_EQ(store->use().entries, 1);
  EXPECT_GE(Held(), 20'000);
  reversal = absl::CancelledError("done");
  EXPECT_GE(store->Relieve(60'000), 20'000);
  EXPECT_EQ(Held(), 0);
}

TEST_F(KeptRunsTest, ReliefGivesMemoryBackButNotWhatAReversalReads) {
  const auto store = Store(50'000);
  const std::string read = *store->Keep(SomeRun(), "ada");
  const std::string idle = *store->Keep(SomeRun(), "ada");
  absl::StatusOr<KeptRuns::Kept> reversal = store->Find(read, "ada");
  ASSERT_TRUE(reversal.ok());
  ASSERT_TRUE(store->Find(idle, "ada").ok());  // the one that is read is the oldest now
  EXPECT_GE(store->Relieve(2 * kRunBytes), kRunBytes);
  EXPECT_FALSE(store->Find(idle, "ada").ok());
  EXPECT_TRUE(store->Find(read, "ada").ok());
  EXPECT_GE(Held(), kRunBytes) << "the reversal still reads it";
  EXPECT_EQ(store->Relieve(kRunBytes), 0);
  reversal = absl::CancelledError("done");
  EXPECT_GE(store->Relieve(kRunBytes), kRunBytes);
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(lost_[static_cast<size_t>(KeptLost::kReleased)], 2);
}

}  // namespace
}  // namespace simgrad::server::service
