// Uploaded content: whose it is, how long it lives, what goes first.
#include "server/service/contents.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "server/scheduling/memory_budget.h"

namespace simgrad::server::service {
namespace {

constexpr int64_t kBytes = 10'000;  // of an entry, with what it takes beside
constexpr int64_t kAll = int64_t{1} << 40;

// Of entries that differ by their digest.
std::string SomeContent() {
  std::string content;
  content.reserve(kBytes - Contents::kBesideContent);
  content.resize(content.capacity(), 'x');
  return content;
}

class ContentsTest : public testing::Test {
 protected:
  std::unique_ptr<Contents> Store(int64_t max_bytes) {
    ContentsOptions options;
    options.ttl = absl::Minutes(10);
    options.max_bytes = max_bytes;
    options.now = [this] { return now_; };
    auto store = std::make_unique<Contents>(std::move(options));
    memory_.SetRelief([store = store.get()](int64_t bytes) { store->Relieve(bytes); });
    return store;
  }
  bool Keep(Contents& store, const std::string& digest, const std::string& caller,
            int64_t most = kAll) {
    now_ += absl::Seconds(1);
    auto upload = memory_.Reserve(kBytes, scheduling::MemoryUse::kUpload, ada_);
    if (!upload) return false;
    return store.Keep(SomeContent(), digest, caller, most, *std::move(upload));
  }
  int64_t Held() const { return memory_.used(scheduling::MemoryUse::kCache); }

  scheduling::MemoryBudget memory_{10 * kBytes};
  std::shared_ptr<scheduling::Caller> ada_ =
      std::make_shared<scheduling::Caller>("ada", scheduling::CallerLimits());
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(ContentsTest, AreTheirCallersAlone) {
  const auto store = Store(kAll);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_NE(store->Find("one", "ada"), nullptr);
  EXPECT_EQ(*store->Find("one", "ada"), SomeContent());
  EXPECT_EQ(store->Find("one", "eve"), nullptr);
  EXPECT_EQ(store->Find("two", "ada"), nullptr);
  // What a stranger uploads is its own, and found or lost by itself.
  ASSERT_TRUE(Keep(*store, "one", "eve"));
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_EQ(store->use().bytes, 2 * kBytes);
}

TEST_F(ContentsTest, AreKeptOnceHoweverOftenTheyCome) {
  const auto store = Store(kAll);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Keep(*store, "one", "ada"));
  EXPECT_EQ(store->use().entries, 1);
  EXPECT_EQ(Held(), kBytes);
}

TEST_F(ContentsTest, LeastRecentlyUsedGoFirst) {
  const auto store = Store(2 * kBytes);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_TRUE(Keep(*store, "two", "ada"));
  EXPECT_NE(store->Find("one", "ada"), nullptr);
  ASSERT_TRUE(Keep(*store, "three", "ada"));
  EXPECT_NE(store->Find("one", "ada"), nullptr);
  EXPECT_EQ(store->Find("two", "ada"), nullptr);
  EXPECT_EQ(Held(), 2 * kBytes);
}

TEST_F(ContentsTest, OfACallerWithMuchGoBeforeThoseOfOneWithLittle) {
  const auto store = Store(4 * kBytes);
  ASSERT_TRUE(Keep(*store, "old", "ada"));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Keep(*store, std::to_string(i), "eve"));
  EXPECT_NE(store->Find("old", "ada"), nullptr);
  EXPECT_NE(store->Find("19", "eve"), nullptr);
  EXPECT_EQ(store->use().entries, 4);
}

TEST_F(ContentsTest, OfACallerStayWithinItsShare) {
  const auto store = Store(10 * kBytes);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Keep(*store, std::to_string(i), "ada", 2 * kBytes));
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_EQ(store->Find("2", "ada"), nullptr);
  EXPECT_NE(store->Find("3", "ada"), nullptr);
  EXPECT_FALSE(Keep(*store, "more", "ada", kBytes - 1));
  EXPECT_EQ(store->use().entries, 2);
}

TEST_F(ContentsTest, LiveTheirTimeAfterTheirLastUse) {
  const auto store = Store(kAll);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_TRUE(Keep(*store, "two", "ada"));
  now_ += absl::Minutes(9);
  EXPECT_NE(store->Find("one", "ada"), nullptr);
  now_ += absl::Minutes(2);
  EXPECT_EQ(store->Find("two", "ada"), nullptr);
  EXPECT_NE(store->Find("one", "ada"), nullptr);
  now_ += absl::Minutes(10);
  store->DropExpired();
  EXPECT_EQ(store->use().entries, 0);
  EXPECT_EQ(Held(), 0);
}

TEST_F(ContentsTest, TakeTheirMemoryFromTheBudget) {
  const auto store = Store(kAll);
  auto work = *memory_.Reserve(8 * kBytes, scheduling::MemoryUse::kWork);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_TRUE(Keep(*store, "two", "ada"));
  EXPECT_EQ(Held(), 2 * kBytes);
  ASSERT_TRUE(Keep(*store, "three", "eve"));  // in the place of another
  EXPECT_EQ(store->Find("one", "ada"), nullptr);
  ASSERT_TRUE(work.Grow(2 * kBytes));
  EXPECT_EQ(store->use().entries, 0);
  EXPECT_FALSE(Keep(*store, "four", "ada"));
}

TEST_F(ContentsTest, TakeOverTheMemoryOfTheirUpload) {
  const auto store = Store(kAll);
  ASSERT_TRUE(Keep(*store, "old", "eve"));
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Keep(*store, std::to_string(i), "ada"));
  EXPECT_EQ(Held(), 10 * kBytes);  // all there is, so none was counted twice
  EXPECT_EQ(memory_.used(scheduling::MemoryUse::kUpload), 0);
  EXPECT_EQ(ada_->memory_bytes(), 0);  // of the server's share, no longer of its caller's
  EXPECT_NE(store->Find("old", "eve"), nullptr);
}

TEST_F(ContentsTest, ThatCannotBeKeptPushOutNone) {
  const auto store = Store(2 * kBytes);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_TRUE(Keep(*store, "two", "eve"));
  EXPECT_FALSE(Keep(*store, "more", "ada", kBytes - 1));
  auto upload = memory_.Reserve(3 * kBytes, scheduling::MemoryUse::kUpload, ada_);
  ASSERT_TRUE(upload.has_value());
  const std::string large(3 * kBytes - Contents::kBesideContent, 'x');
  EXPECT_FALSE(store->Keep(large, "large", "eve", kAll, *std::move(upload)));
  EXPECT_EQ(store->use().entries, 2);
  EXPECT_EQ(memory_.used(scheduling::MemoryUse::kUpload), 0);
}

TEST_F(ContentsTest, ReliefTakesTheLeastRecentlyUsedOfAll) {
  const auto store = Store(kAll);
  ASSERT_TRUE(Keep(*store, "one", "ada"));
  ASSERT_TRUE(Keep(*store, "two", "eve"));
  ASSERT_TRUE(Keep(*store, "three", "eve"));
  EXPECT_EQ(store->Relieve(1), kBytes);
  EXPECT_EQ(store->Find("one", "ada"), nullptr);
  EXPECT_EQ(store->Relieve(kAll), 2 * kBytes);
  EXPECT_EQ(Held(), 0);
}

}  // namespace
}  // namespace simgrad::server::service
