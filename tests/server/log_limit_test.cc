#include "server/service/log_limit.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace simgrad::server::service {
namespace {

constexpr int64_t kLines = 3;
const absl::Time kStart = absl::FromUnixSeconds(1000);

int64_t Admitted(LogLimit& limit, int lines, absl::Time now) {
  int64_t admitted = 0;
  for (int i = 0; i < lines; ++i) admitted += limit.Admits(now) ? 1 : 0;
  return admitted;
}

TEST(LogLimit, LetsSoManyLinesThroughEachSecond) {
  LogLimit limit(kLines);
  EXPECT_EQ(Admitted(limit, 10, kStart), kLines);
  EXPECT_EQ(Admitted(limit, 10, kStart + absl::Milliseconds(999)), 0);
  EXPECT_EQ(Admitted(limit, 10, kStart + absl::Seconds(1)), kLines);
  EXPECT_EQ(Admitted(limit, 2, kStart + absl::Seconds(60)), 2);
}

TEST(LogLimit, TellsOnceHowManyWereLeftOutWhenTheirSecondIsOver) {
  LogLimit limit(kLines);
  EXPECT_EQ(limit.TakeLeftOut(kStart), 0);
  Admitted(limit, 10, kStart);
  EXPECT_EQ(limit.TakeLeftOut(kStart + absl::Milliseconds(999)), 0);
  EXPECT_EQ(limit.TakeLeftOut(kStart + absl::Seconds(1)), 7);
  EXPECT_EQ(limit.TakeLeftOut(kStart + absl::Seconds(1)), 0);
}

TEST(LogLimit, ForgetsNothingThatWasLeftOutInEarlierSeconds) {
  LogLimit limit(kLines);
  for (int second = 0; second < 3; ++second) {
    Admitted(limit, 10, kStart + absl::Seconds(second));
  }
  EXPECT_EQ(limit.TakeLeftOut(kStart + absl::Seconds(3)), 21);
}

TEST(LogLimit, CountsEachLineOfSeveralThreadsOnce) {
  LogLimit limit(kLines);
  constexpr int kThreads = 4, kEach = 1000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&limit] { Admitted(limit, kEach, kStart); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(limit.TakeLeftOut(kStart + absl::Seconds(1)), kThreads * kEach - kLines);
}

}  // namespace
}  // namespace simgrad::server::service
