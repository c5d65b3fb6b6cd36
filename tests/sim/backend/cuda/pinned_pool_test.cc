// Pinned memory that was given back serves the next, up to a bound.
#include "sim/backend/cuda/driver/pinned_pool.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"

namespace simgrad::sim::cuda {
namespace {

TEST(PinnedPoolTest, SizesAreThoseThatFitAgain) {
  EXPECT_EQ(PinnedPool::SizeFor(0), 4096);
  EXPECT_EQ(PinnedPool::SizeFor(1), 4096);
  EXPECT_EQ(PinnedPool::SizeFor(4097), 8192);
  EXPECT_EQ(PinnedPool::SizeFor((int64_t{1} << 33) - 5), int64_t{1} << 33);
  EXPECT_EQ(PinnedPool::SizeFor((int64_t{1} << 33) + 1), int64_t{9} << 30);
}

TEST(PinnedPoolTest, ASizeIsAnEighthOrAPageMoreAtMostAndFewSizesServeAll) {
  std::set<int64_t> sizes;
  for (int64_t bytes = 1; bytes < int64_t{1} << 40; bytes += 1 + bytes / 333) {
    const int64_t size = PinnedPool::SizeFor(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LT(size - bytes, std::max<int64_t>(4096, (bytes + 7) / 8)) << bytes;
    ASSERT_EQ(PinnedPool::SizeFor(size), size);
    sizes.insert(size);
  }
  EXPECT_LE(sizes.size(), 8u * 28);
}

TEST(PinnedPoolTest, WhatIsKeptIsTakenOnceAndTheRestIsFreed) {
  PinnedPool pool(3 * 4096);
  char pieces[3] = {};
  EXPECT_EQ(pool.Take(4096), nullptr);
  EXPECT_TRUE(pool.Keep(&pieces[0], 4096));
  EXPECT_TRUE(pool.Keep(&pieces[1], 8192));
  EXPECT_FALSE(pool.Keep(&pieces[2], 4096));  // that would be more than the bound
  EXPECT_EQ(pool.Take(8192), &pieces[1]);
  EXPECT_EQ(pool.Take(8192), nullptr);
  std::set<void*> freed;
  pool.Clear([&](void* data) { freed.insert(data); });
  EXPECT_EQ(freed, std::set<void*>{&pieces[0]});
  EXPECT_EQ(pool.Take(4096), nullptr);
}

}  // namespace
}  // namespace simgrad::sim::cuda
