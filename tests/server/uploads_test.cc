// What unfinished requests may hold, on a clock and a count of bytes of the test.

#include "server/service/uploads.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

namespace simgrad::server::service {
namespace {

using Clock = Uploads::Clock;
using scheduling::RefusalReason;
constexpr int64_t kMiB = 1 << 20;

struct Recorded final : Upload {
  void Refuse(const scheduling::Refusal& told) override { refusal = told; }
  std::optional<scheduling::Refusal> refusal;
};

class UploadsTest : public testing::Test {
 protected:
  explicit UploadsTest(UploadLimits limits = {100 * kMiB, 100 * kMiB, absl::Seconds(10)})
      : uploads_(
            limits, memory_, [this](const std::string& peer) { return read_[peer]; },
            [this] { ++trims_; }) {}
  std::shared_ptr<Recorded> Begin(const std::string& peer, Uploads::Origin origin = {}) {
    auto upload = std::make_shared<Recorded>();
    uploads_.Begin(upload, peer, origin, now_);
    return upload;
  }
  void LookAfter(std::chrono::milliseconds time) {
    now_ += time;
    uploads_.Look(now_);
  }

  int trims_ = 0;
  std::map<std::string, int64_t> read_;
  Clock::time_point now_ = Clock::time_point() + std::chrono::hours(1);
  scheduling::MemoryBudget memory_{1000 * kMiB};
  Uploads uploads_;
};

TEST_F(UploadsTest, WithinTheLimitStay) {
  const auto one = Begin("a");
  read_["a"] = 99 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(one->refusal);
  EXPECT_EQ(uploads_.bytes(), 99 * kMiB);
  uploads_.End(one.get(), "a", 99 * kMiB);
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(uploads_.bytes(), 0);
}

TEST_F(UploadsTest, BeyondTheLimitGoFromThePeerThatHoldsMost) {
  const auto small = Begin("a");
  const auto first = Begin("b"), second = Begin("b");
  read_["a"] = 40 * kMiB;
  read_["b"] = 80 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(small->refusal);
  ASSERT_TRUE(first->refusal);
  EXPECT_EQ(first->refusal->reason, RefusalReason::kMemory);
  EXPECT_GT(first->refusal->retry_after, absl::ZeroDuration());
  EXPECT_FALSE(second->refusal);
  EXPECT_LE(uploads_.bytes(), 100 * kMiB);
}

TEST_F(UploadsTest, CountWhatCameBeforeTheFirstCallOfAConnectionWasTaken) {
  read_["a"] = read_["b"] = 4 * kMiB;
  const auto first = Begin("a", {.first_of_connection = true});
  const auto later = Begin("b");
  read_["a"] += 20 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(uploads_.bytes(), 24 * kMiB);
}

// While another was coming, whose bytes are told apart only once it is complete.
TEST_F(UploadsTest, CountAllOfThoseThatBeganBesideAnother) {
  const auto first = Begin("a", {.first_of_connection = true});
  read_["a"] = 60 * kMiB;
  now_ += std::chrono::milliseconds(10);
  const auto second = Begin("a"), third = Begin("a");
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(uploads_.bytes(), 60 * kMiB);
  uploads_.End(first.get(), "a", 60 * kMiB);
  read_["a"] += 30 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_NEAR(static_cast<double>(uploads_.bytes()), 30.0 * kMiB, 4096.0);
  read_["a"] += 80 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_TRUE(second->refusal);
  EXPECT_FALSE(third->refusal);
  EXPECT_LE(uploads_.bytes(), 100 * kMiB);
}

TEST_F(UploadsTest, OfAConnectionAreNotThoseOfOneBeforeItWithItsName) {
  const auto before = Begin("a", {.first_of_connection = true});
  read_["a"] = 60 * kMiB;
  uploads_.End(before.get(), "a", 60 * kMiB);
  read_["a"] = 0;
  const auto first = Begin("a", {.first_of_connection = true});
  read_["a"] = 20 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(uploads_.bytes(), 20 * kMiB);
}

TEST_F(UploadsTest, OfACallerThatAlwaysHasOneOpenAreNotCountedTwice) {
  // Each begins before the one before it is complete: 1000 of 10 MiB, never more than two.
  auto before = Begin("a");
  for (int i = 0; i < 1000; ++i) {
    const auto next = Begin("a");
    read_["a"] += 10 * kMiB;
    LookAfter(std::chrono::milliseconds(50));
    ASSERT_LE(uploads_.bytes(), 21 * kMiB);
    uploads_.End(before.get(), "a", 10 * kMiB);
    before = next;
    ASSERT_FALSE(before->refusal);
  }
}

TEST_F(UploadsTest, ThatEndWithoutARequestAreForgottenWithTheOldest) {
  const auto left = Begin("a");
  read_["a"] = 90 * kMiB;
  uploads_.End(left.get(), "a", 0);
  const auto next = Begin("a");
  read_["a"] += 90 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(next->refusal);
}

TEST_F(UploadsTest, ThatAreNotCompleteInTimeAreRefused) {
  const auto slow = Begin("a");
  LookAfter(std::chrono::milliseconds(9'000));
  const auto young = Begin("a");
  EXPECT_FALSE(slow->refusal);
  LookAfter(std::chrono::milliseconds(1'000));
  ASSERT_TRUE(slow->refusal);
  EXPECT_EQ(slow->refusal->reason, RefusalReason::kDeadline);
  EXPECT_FALSE(young->refusal);
  uploads_.End(slow.get(), "a", 0);  // what gRPC says of it afterwards
  uploads_.End(young.get(), "a", 1);
}

TEST_F(UploadsTest, ThatHeldMuchAreTrimmedAgainOnceGrpcHasFreedThem) {
  const auto one = Begin("a");
  read_["a"] = 90 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(trims_, 0);
  uploads_.End(one.get(), "a", 0);
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(trims_, 1);
  // gRPC frees them now, after the first trim.
  LookAfter(std::chrono::milliseconds(25));
  EXPECT_EQ(trims_, 1);
  for (int i = 0; i < 1'000; ++i) LookAfter(std::chrono::milliseconds(25));
  EXPECT_EQ(trims_, 4);
}

TEST_F(UploadsTest, TakeOfTheMemoryOfAllWhatTheyHold) {
  const auto one = Begin("a");
  read_["a"] = 90 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_EQ(memory_.used(scheduling::MemoryUse::kUpload), 90 * kMiB);
  uploads_.End(one.get(), "a", 90 * kMiB);  // from now on the request has its own
  EXPECT_EQ(memory_.used(scheduling::MemoryUse::kUpload), 0);
}

TEST_F(UploadsTest, GoWhereThereIsNoMemoryForThem) {
  const auto work = memory_.Reserve(950 * kMiB, scheduling::MemoryUse::kWork);
  ASSERT_TRUE(work);
  const auto first = Begin("a"), second = Begin("a");
  read_["a"] = 60 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  ASSERT_TRUE(first->refusal);
  EXPECT_EQ(first->refusal->reason, RefusalReason::kMemory);
  EXPECT_FALSE(second->refusal);
  EXPECT_LE(memory_.used(), memory_.limit());
  EXPECT_EQ(memory_.used(scheduling::MemoryUse::kUpload), uploads_.bytes());
}

TEST_F(UploadsTest, OfStrangersAreSmall) {
  const auto stranger = Begin("a", {.of_caller = false});
  const auto caller = Begin("b"), beside = Begin("b", {.of_caller = false});
  read_["a"] = read_["b"] = Uploads::kMostOfStrangers;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(stranger->refusal);
  read_["a"] = read_["b"] = 2 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  ASSERT_TRUE(stranger->refusal);
  EXPECT_EQ(stranger->refusal->reason, RefusalReason::kMemory);
  EXPECT_FALSE(caller->refusal);
  EXPECT_FALSE(beside->refusal);  // whose bytes they are cannot be told
}

// gRPC says that a message is too long when all of it has come.
class LongUploads : public UploadsTest {
 protected:
  LongUploads() : UploadsTest({1000 * kMiB, 16 * kMiB, absl::Seconds(10)}) {}
};

TEST_F(LongUploads, AreRefusedOnceTheyHoldMoreThanAMessageMay) {
  const auto beside = Begin("b");
  const auto one = Begin("a");
  read_["a"] = read_["b"] = 33 * kMiB;  // 16 of the message, 1 beside it in 8, 16 of other calls
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(one->refusal);
  read_["a"] = 36 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  ASSERT_TRUE(one->refusal);
  EXPECT_EQ(one->refusal->reason, RefusalReason::kLength);
  EXPECT_EQ(one->refusal->retry_after, absl::ZeroDuration());
  EXPECT_NE(one->refusal->message.find("--max_request_bytes"), std::string::npos);
  EXPECT_FALSE(beside->refusal);
  EXPECT_EQ(uploads_.bytes(), 33 * kMiB);
}

TEST_F(LongUploads, OfAConnectionAreJudgedTogether) {
  const auto first = Begin("a"), second = Begin("a"), third = Begin("a");
  read_["a"] = 70 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(first->refusal);
  read_["a"] = 100 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  ASSERT_TRUE(first->refusal);
  EXPECT_EQ(first->refusal->reason, RefusalReason::kMemory);
  EXPECT_GT(first->refusal->retry_after, absl::ZeroDuration());  // it may be another's bytes
  EXPECT_FALSE(second->refusal || third->refusal);  // what the first brought may still be counted
}

// Nobody takes off the count what a call brought that ended without a message.
TEST_F(LongUploads, AreNotJudgedByBytesOfCallsThatEnded) {
  const auto stays = Begin("a");
  const auto left = Begin("a"), late = Begin("a");
  read_["a"] = 45 * kMiB;
  uploads_.End(left.get(), "a", 0);
  uploads_.End(late.get(), "a", 0);
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(stays->refusal);
  uploads_.Unread("a");
  read_["a"] = 72 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(stays->refusal);
  read_["a"] = 90 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  ASSERT_TRUE(stays->refusal);
  EXPECT_EQ(stays->refusal->reason, RefusalReason::kMemory);
  EXPECT_GT(stays->refusal->retry_after, absl::ZeroDuration());
}

TEST_F(LongUploads, MayBringContentInFurtherMessages) {
  const auto one = Begin("a", {.most_content = 200 * kMiB});
  read_["a"] = 240 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_FALSE(one->refusal);
  read_["a"] = 270 * kMiB;
  LookAfter(std::chrono::milliseconds(50));
  EXPECT_TRUE(one->refusal);
}

TEST_F(UploadsTest, LiveNoLongerThanTheyAreOpen) {
  const auto upload = Begin("a");
  EXPECT_EQ(upload.use_count(), 2);
  uploads_.End(upload.get(), "a", 1);
  EXPECT_EQ(upload.use_count(), 1);
}

}  // namespace
}  // namespace simgrad::server::service
