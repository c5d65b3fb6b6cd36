#include "server/service/held_refusals.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "server/scheduling/caller.h"

namespace simgrad::server::service {
namespace {

using Clock = HeldRefusals::Clock;
constexpr Clock::time_point kStart{std::chrono::hours(1)};
constexpr std::chrono::milliseconds kMs{1};

struct Counted final : HeldRefusal {
  void Tell() override { ++told; }
  int told = 0;
};

class HeldRefusalsTest : public testing::Test {
 protected:
  std::shared_ptr<Counted> Add(Clock::time_point due) {
    auto refusal = std::make_shared<Counted>();
    taken_ = held_.Add(refusal, due);
    return refusal;
  }
  int64_t room_ = 0;
  bool taken_ = false;
  HeldRefusals held_{3, [this] { return room_; }};
};

TEST_F(HeldRefusalsTest, AreToldOnceWhenTheyAreDue) {
  const auto late = Add(kStart + 2 * kMs), soon = Add(kStart + kMs);
  held_.Look(kStart);
  EXPECT_EQ(soon->told + late->told, 0);
  held_.Look(kStart + kMs);
  EXPECT_EQ(soon->told, 1);
  EXPECT_EQ(late->told, 0);
  held_.Look(kStart + 5 * kMs);
  EXPECT_EQ(soon->told, 1);
  EXPECT_EQ(late->told, 1);
  EXPECT_EQ(held_.size(), 0);
}

TEST_F(HeldRefusalsTest, AreAtMostSoMany) {
  for (int i = 0; i < 3; ++i) Add(kStart);
  EXPECT_TRUE(taken_);
  Add(kStart);
  EXPECT_FALSE(taken_);
  held_.Look(kStart);
  Add(kStart);
  EXPECT_TRUE(taken_);
}

TEST_F(HeldRefusalsTest, AreToldEarlyAsFarAsTheQueueHasRoom) {
  const auto last = Add(kStart + 3 * kMs), first = Add(kStart + kMs), next = Add(kStart + 2 * kMs);
  room_ = 2;
  held_.Look(kStart);
  room_ = 0;
  held_.Look(kStart);
  EXPECT_EQ(held_.size(), 3);  // it had room for a moment only
  room_ = 2;
  held_.Look(kStart);
  held_.Look(kStart);
  EXPECT_EQ(first->told, 1);
  EXPECT_EQ(next->told, 1);
  EXPECT_EQ(last->told, 0);
}

TEST_F(HeldRefusalsTest, AreHeldUntilTheirTurnButNotBeyondHalfOfTheirCallersTime) {
  const auto hold = [](int turn_ms, absl::Duration left) {
    return absl::ToInt64Milliseconds(HeldRefusals::HoldFor(absl::Milliseconds(turn_ms), left));
  };
  EXPECT_EQ(hold(0, absl::InfiniteDuration()), 0);
  EXPECT_EQ(hold(1000, absl::InfiniteDuration()), 1000);
  EXPECT_EQ(hold(1000, absl::Seconds(3)), 1000);
  // A look that comes late by an interval comes by the half.
  const int64_t interval = OpenStreams::kInterval.count();
  EXPECT_EQ(hold(1000, absl::Seconds(1)), 500 - interval);
  EXPECT_EQ(hold(1000, absl::Milliseconds(2 * interval + 2)), 1);
  EXPECT_EQ(hold(1000, absl::Milliseconds(2 * interval)), 0);
  EXPECT_EQ(hold(1000, absl::Milliseconds(5)), 0);
  EXPECT_EQ(hold(1000, absl::Seconds(-1)), 0);
}

TEST(RefusalPace, OfOneCallerIsABurstAndThenSoManyASecond) {
  scheduling::Caller caller("one", {}), other("other", {});
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(caller.PaceRefusal(now), absl::ZeroDuration());
  EXPECT_EQ(caller.PaceRefusal(now), absl::Milliseconds(16));
  EXPECT_EQ(caller.PaceRefusal(now), absl::Milliseconds(32));
  EXPECT_EQ(other.PaceRefusal(now), absl::ZeroDuration());
  // None waits for more than three seconds, however many there are.
  for (int i = 0; i < 1000; ++i) EXPECT_LE(caller.PaceRefusal(now), absl::Seconds(3));
  EXPECT_EQ(caller.PaceRefusal(now), absl::Seconds(3));
  // A caller that stays away for a while begins anew.
  EXPECT_EQ(caller.PaceRefusal(now + absl::Seconds(5)), absl::ZeroDuration());
}

}  // namespace
}  // namespace simgrad::server::service
