#include "server/service/freed_memory.h"

#include "gtest/gtest.h"

namespace simgrad::server::service {
namespace {

TEST(FreedMemory, GoesBackOnceInEachInterval) {
  int trims = 0;
  const OpenStream::Clock::time_point start;
  FreedMemory freed([&] { ++trims; }, start);
  const auto look_after = [&](std::chrono::milliseconds time) {
    freed.Look(start + time);
    return trims;
  };
  constexpr std::chrono::milliseconds kInterval = FreedMemory::kInterval;
  EXPECT_EQ(look_after(std::chrono::milliseconds(0)), 0);
  EXPECT_EQ(look_after(kInterval - std::chrono::milliseconds(1)), 0);
  EXPECT_EQ(look_after(kInterval), 1);
  EXPECT_EQ(look_after(kInterval + std::chrono::milliseconds(25)), 1);
  // A late look begins the next interval.
  EXPECT_EQ(look_after(3 * kInterval), 2);
  EXPECT_EQ(look_after(4 * kInterval - std::chrono::milliseconds(1)), 2);
  EXPECT_EQ(look_after(4 * kInterval), 3);
}

}  // namespace
}  // namespace simgrad::server::service
