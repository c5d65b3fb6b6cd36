// Modules in memory: made once, found again, dropped only where nobody holds them.
#include "sim/backend/cuda/compiler/module_cache.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/backend/purse.h"

namespace simgrad::sim::cuda {
namespace {

constexpr int64_t kImageBytes = 100;
constexpr int64_t kMuch = int64_t{1} << 40;

ModuleCache::Loaded MakeModule() { return std::make_shared<const Module>(kImageBytes); }
ModuleCache::Loaded NeverMade() {
  ADD_FAILURE() << "made again";
  return MakeModule();
}

// Whether a key has its module still; puts it to the front.
bool Has(ModuleCache& cache, const std::string& key) { return !cache.Get(key, MakeModule).made; }

TEST(ModuleCacheTest, TheSecondWhoAsksFindsTheModuleOfTheFirst) {
  ModuleCache cache(4 * kImageBytes);
  const ModuleCache::Answer first = cache.Get("key", MakeModule);
  const ModuleCache::Answer second = cache.Get("key", NeverMade);
  EXPECT_TRUE(first.made);
  EXPECT_FALSE(second.made);
  ASSERT_TRUE(first.module.ok() && second.module.ok());
  EXPECT_EQ(*first.module, *second.module);
}

TEST(ModuleCacheTest, AllWhoAskAtOnceWaitForOneToBeMade) {
  constexpr int kThreads = 8;
  ModuleCache cache(4 * kImageBytes);
  std::atomic<int> made{0};
  std::atomic<int> asking{0};
  std::vector<std::shared_ptr<const Module>> modules(kThreads);
  const auto make = [&]() -> ModuleCache::Loaded {
    ++made;
    // All others are about to ask, or wait; whoever were let in would count.
    while (asking < kThreads) std::this_thread::yield();
    return MakeModule();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++asking;
      modules[static_cast<size_t>(i)] = *cache.Get("key", make).module;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  for (const auto& module : modules) EXPECT_EQ(module, modules[0]);
}

TEST(ModuleCacheTest, WhoAsksForAnotherModuleDoesNotWait) {
  ModuleCache cache(4 * kImageBytes);
  std::promise<void> finish;
  std::thread slow([&] {
    cache.Get("slow", [&]() -> ModuleCache::Loaded {
      finish.get_future().wait();
      return MakeModule();
    });
  });
  EXPECT_TRUE(cache.Get("quick", MakeModule).made);  // returns while the other cannot
  finish.set_value();
  slow.join();
}

TEST(ModuleCacheTest, AFailureIsToldAndNotKept) {
  ModuleCache cache(4 * kImageBytes);
  const auto fail = []() -> ModuleCache::Loaded { return absl::InternalError("a syntax error"); };
  EXPECT_EQ(cache.Get("key", fail).module.status().message(), "a syntax error");
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_TRUE(cache.Get("key", MakeModule).module.ok());
}

TEST(ModuleCacheTest, WhatThrowsIsAFailureToo) {
  ModuleCache cache(4 * kImageBytes);
  const auto fail = []() -> ModuleCache::Loaded { throw std::bad_alloc(); };
  EXPECT_EQ(cache.Get("key", fail).module.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(cache.Get("key", MakeModule).module.ok());
}

TEST(ModuleCacheTest, TheLeastRecentlyUsedIsDropped) {
  ModuleCache cache(2 * kImageBytes);
  cache.Get("a", MakeModule);
  cache.Get("b", MakeModule);
  EXPECT_TRUE(Has(cache, "a"));
  cache.Get("c", MakeModule);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.bytes(), 2 * kImageBytes);
  EXPECT_TRUE(Has(cache, "a"));
  EXPECT_FALSE(Has(cache, "b"));
}

TEST(ModuleCacheTest, ALargeModuleTakesTheRoomOfSeveral) {
  ModuleCache cache(4 * kImageBytes);
  for (const char* key : {"a", "b", "c", "d"}) cache.Get(key, MakeModule);
  cache.Get("large", []() -> ModuleCache::Loaded {
    return std::make_shared<const Module>(3 * kImageBytes);
  });
  EXPECT_EQ(cache.bytes(), 4 * kImageBytes);
  EXPECT_TRUE(Has(cache, "d"));
  EXPECT_FALSE(Has(cache, "c"));
}

TEST(ModuleCacheTest, WhatTheWatchHasNoMemoryForIsGivenAndNotKept) {
  const auto purse = std::make_shared<tests::Purse>();
  ModuleCache cache(4 * kImageBytes, purse);
  cache.Get("kept", MakeModule);
  EXPECT_EQ(purse->held, kImageBytes);
  purse->cache_bytes = 0;
  EXPECT_TRUE(cache.Get("given", MakeModule).module.ok());
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_TRUE(cache.Get("kept", NeverMade).module.ok());
}

TEST(ModuleCacheTest, AModuleInUseStaysAboveTheBoundAndGoesAfterwards) {
  ModuleCache cache(1 * kImageBytes);
  auto used = *cache.Get("used", MakeModule).module;
  cache.Get("a", MakeModule);
  cache.Get("b", MakeModule);
  EXPECT_EQ(cache.size(), 2u);  // `a` made room for `b`, which its caller held until now
  EXPECT_EQ(*cache.Get("used", NeverMade).module, used);
  used.reset();
  cache.Get("c", MakeModule);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_FALSE(Has(cache, "used"));
}

TEST(ModuleCacheTest, WhoNeedsMemoryGetsWhatNobodyUsesTheOldestFirst) {
  const auto purse = std::make_shared<tests::Purse>();
  ModuleCache cache(8 * kImageBytes, purse);
  const auto used = *cache.Get("used", MakeModule).module;
  for (const char* key : {"a", "b", "c"}) cache.Get(key, MakeModule);
  EXPECT_EQ(cache.Relieve(0), 0);
  EXPECT_EQ(cache.Relieve(kImageBytes + 1), 2 * kImageBytes);
  EXPECT_EQ(purse->held, 2 * kImageBytes);
  EXPECT_TRUE(Has(cache, "c"));
  EXPECT_EQ(cache.Relieve(kMuch), kImageBytes);
  EXPECT_EQ(*cache.Get("used", NeverMade).module, used);
  EXPECT_EQ(purse->held, kImageBytes);
}

}  // namespace
}  // namespace simgrad::sim::cuda
