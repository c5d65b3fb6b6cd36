// A program that is run again is not generated again.
#include "sim/backend/cuda/source_cache.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/backend/cuda/world_cases.h"
#include "tests/sim/backend/purse.h"

namespace simgrad::sim::cuda {
namespace {

constexpr int64_t kMuch = int64_t{1} << 30;

std::shared_ptr<const NumericalProgram> ProgramOf(size_t world) {
  auto program = tests::LowerCase(tests::WorldCases(3)[world], "f32", false);
  EXPECT_TRUE(program.ok()) << program.status();
  return std::make_shared<const NumericalProgram>(*std::move(program));
}

TEST(SourceCacheTest, AProgramIsGeneratedOnceForEachOption) {
  SourceCache cache(kMuch);
  const auto program = ProgramOf(0);
  const GenerateOptions thread = {.mapping = Mapping::kThreadPerInstance, .per_step = {false}};
  const GenerateOptions block = {.mapping = Mapping::kBlockPerInstance, .per_step = {false}};
  const GenerateOptions stepped = {.mapping = Mapping::kThreadPerInstance, .per_step = {true}};
  const auto first = *cache.Get(program, thread);
  EXPECT_EQ(*cache.Get(program, thread), first);
  EXPECT_NE(*cache.Get(program, block), first);
  EXPECT_NE(*cache.Get(program, stepped), first);
  EXPECT_NE(*cache.Get(ProgramOf(1), thread), first);
  EXPECT_EQ(*cache.Get(program, thread), first);
}

TEST(SourceCacheTest, WhatIsOfAProgramThatHasGoneIsForgotten) {
  SourceCache cache(kMuch);
  auto gone = ProgramOf(0);
  const auto kept = ProgramOf(1);
  ASSERT_TRUE(cache.Get(gone, {}).ok() && cache.Get(kept, {}).ok());
  gone.reset();
  const auto other = ProgramOf(2);
  ASSERT_TRUE(cache.Get(other, {}).ok());
  EXPECT_EQ(cache.size(), 2u);
}

// Gives memory as a server does: what is kept may be given up for it.
class Relieving final : public CompileWatch {
 public:
  HeldMemory ForCompile(int64_t) override { return nullptr; }
  HeldMemory ForCache(int64_t) override {
    relieved += cache->Relieve(1);
    return std::make_shared<char>();
  }
  void Compiled(CompileQuality, double) override {}
  void Refused(const std::string&, const std::string&) override {}
  SourceCache* cache = nullptr;
  int64_t relieved = 0;
};

TEST(SourceCacheTest, MemoryForATextMayBeThatOfAnother) {
  const auto watch = std::make_shared<Relieving>();
  SourceCache cache(kMuch, watch);
  watch->cache = &cache;
  const auto first = ProgramOf(0);
  const auto second = ProgramOf(1);
  ASSERT_TRUE(cache.Get(first, {}).ok());
  ASSERT_TRUE(cache.Get(second, {}).ok());
  EXPECT_GT(watch->relieved, 0);
  EXPECT_EQ(cache.size(), 1u);
}

// What a cache holds of the text of one program.
int64_t BytesOf(const std::shared_ptr<const NumericalProgram>& program) {
  SourceCache cache(kMuch);
  EXPECT_TRUE(cache.Get(program, {}).ok());
  return cache.bytes();
}

TEST(SourceCacheTest, TheLeastRecentlyUsedIsForgottenAboveSoManyBytes) {
  const std::vector programs = {ProgramOf(0), ProgramOf(1), ProgramOf(2)};
  std::vector<int64_t> bytes;
  for (const auto& program : programs) bytes.push_back(BytesOf(program));
  SourceCache cache(bytes[0] + std::max(bytes[1], bytes[2]));
  const auto first = *cache.Get(programs[0], {});
  const auto second = *cache.Get(programs[1], {});
  EXPECT_EQ(cache.bytes(), bytes[0] + bytes[1]);
  EXPECT_GE(bytes[1], static_cast<int64_t>(second->text.size()));
  EXPECT_EQ(*cache.Get(programs[0], {}), first);
  ASSERT_TRUE(cache.Get(programs[2], {}).ok());
  EXPECT_EQ(cache.bytes(), bytes[0] + bytes[2]);
  EXPECT_EQ(*cache.Get(programs[0], {}), first);
  EXPECT_NE(*cache.Get(programs[1], {}), second);
}

TEST(SourceCacheTest, WhatIsLargerThanTheBoundIsGivenAndNotKept) {
  const auto program = ProgramOf(0);
  SourceCache cache(BytesOf(program) - 1);
  EXPECT_TRUE(cache.Get(program, {}).ok());
  EXPECT_EQ(cache.size(), 0u);
}

TEST(SourceCacheTest, WhatTheWatchHasNoMemoryForIsGivenAndNotKept) {
  const auto purse = std::make_shared<tests::Purse>();
  SourceCache cache(kMuch, purse);
  auto program = ProgramOf(0);
  const auto kept = *cache.Get(program, {});
  EXPECT_EQ(purse->held, cache.bytes());
  purse->cache_bytes = 0;
  const auto other = ProgramOf(1);
  EXPECT_TRUE(cache.Get(other, {}).ok());
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(*cache.Get(program, {}), kept);
  program.reset();
  EXPECT_TRUE(cache.Get(other, {}).ok());
  EXPECT_EQ(purse->held, 0);
}

TEST(SourceCacheTest, WhoNeedsMemoryGetsWhatNobodyUsesTheOldestFirst) {
  const auto purse = std::make_shared<tests::Purse>();
  SourceCache cache(kMuch, purse);
  const std::vector programs = {ProgramOf(0), ProgramOf(1), ProgramOf(2)};
  const auto used = *cache.Get(programs[0], {});
  ASSERT_TRUE(cache.Get(programs[1], {}).ok());
  const int64_t without_last = cache.bytes();
  ASSERT_TRUE(cache.Get(programs[2], {}).ok());
  EXPECT_EQ(cache.Relieve(0), 0);
  const int64_t middle = BytesOf(programs[1]), last = cache.bytes() - without_last;
  EXPECT_EQ(cache.Relieve(1), middle);
  EXPECT_EQ(cache.Relieve(kMuch), last);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(*cache.Get(programs[0], {}), used);
  EXPECT_EQ(purse->held, cache.bytes());
}

// A device that is asked for modules and has none; it has `kept` bytes to give up.
class AskedDevice : public Device {
 public:
  const DeviceLimits& limits() const override { return limits_; }
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream() override { return None(); }
  absl::StatusOr<std::unique_ptr<Event>> MakeEvent() override { return None(); }
  absl::StatusOr<std::shared_ptr<const Module>> Load(const GeneratedSource& source,
                                                     KernelChoice) override {
    asked.push_back(&source);
    return None();
  }
  absl::StatusOr<int64_t> ResidentBlocks(const Module&, const std::string&, int, int64_t) override {
    return None();
  }
  int64_t Relieve(int64_t bytes) override {
    const int64_t freed = std::min(bytes, kept);
    kept -= freed;
    return freed;
  }
  std::vector<const GeneratedSource*> asked;
  int64_t kept = 0;

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t, MemoryKind) override { return None(); }
  void Free(void*, MemoryKind) override {}

 private:
  static absl::Status None() { return absl::UnimplementedError("none"); }
  DeviceLimits limits_;
};

TEST(SourceCacheTest, TheExecutorAsksForTheSameTextAgain) {
  const auto device = std::make_shared<AskedDevice>();
  const auto executor = MakeCudaExecutor(device);
  auto program = tests::LowerCase(tests::WorldCases(3)[0], "f32", false);
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOfCase(*std::move(program), 5, 3);
  EXPECT_FALSE(executor->Create(work.batch, work.options).ok());
  EXPECT_FALSE(executor->Create(work.batch, work.options).ok());
  // The object itself, which another call could not have generated while it lives.
  ASSERT_EQ(device->asked.size(), 2u);
  EXPECT_EQ(device->asked[0], device->asked[1]);
}

TEST(SourceCacheTest, TheExecutorGivesUpTextsFirstAndThenModules) {
  const auto device = std::make_shared<AskedDevice>();
  device->kept = 1000;
  const auto executor = MakeCudaExecutor(device);
  auto program = tests::LowerCase(tests::WorldCases(3)[0], "f32", false);
  ASSERT_TRUE(program.ok()) << program.status();
  Work work = tests::WorkOfCase(*std::move(program), 5, 3);
  EXPECT_FALSE(executor->Create(work.batch, work.options).ok());
  const int64_t text = static_cast<int64_t>(device->asked[0]->text.size());
  EXPECT_GE(executor->Relieve(1), text);
  EXPECT_EQ(device->kept, 1000);
  EXPECT_EQ(executor->Relieve(600), 600);
  EXPECT_EQ(executor->Relieve(600), 400);
  EXPECT_EQ(device->kept, 0);
}

}  // namespace
}  // namespace simgrad::sim::cuda
