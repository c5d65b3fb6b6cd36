// Programs that requests name: their world is made once, for callers that have the content.
#include "server/service/references.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/conversion/program_to_proto.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"
#include "tests/sim/program/large_program.h"

namespace simgrad::server::service {
namespace {

const std::string kDigest(32, 'p');
const std::string kTensorDigest(32, 't');

v1::RolloutRequest Named() {
  v1::RolloutRequest request;
  request.mutable_spec()->mutable_world()->set_program_ref(kDigest);
  return request;
}

class ReferencesTest : public testing::Test {
 protected:
  ReferencesTest() {
    options_.contents = &contents_;
    options_.cache = &cache_;
    options_.caller = "ada";
    options_.max_request_bytes = int64_t{1} << 20;
    options_.take = [this](int64_t bytes) {
      taken_.push_back(bytes);
      return true;
    };
    Keep(content_, kDigest, "ada");
  }

  void Keep(const std::string& content, const std::string& digest, const std::string& caller) {
    const auto bytes = static_cast<int64_t>(content.size()) + Contents::kBesideContent;
    auto memory = memory_.Reserve(bytes, scheduling::MemoryUse::kCache);
    ASSERT_TRUE(memory.has_value());
    ASSERT_TRUE(contents_.Keep(content, digest, caller, int64_t{1} << 30, *std::move(memory)));
  }

  // The world, once the request is resolved; the request stays as it is.
  std::shared_ptr<const conversion::CachedWorld> WorldOf(double* seconds = nullptr) {
    v1::RolloutRequest request = Named();
    Resolved resolved;
    const absl::Status status = Resolve(options_, request, resolved);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(request.spec().world().program_ref(), kDigest);
    if (seconds != nullptr) *seconds = resolved.compile_seconds;
    return resolved.worlds.empty() ? nullptr : resolved.worlds.at(kDigest);
  }
  std::string ReasonOf(const std::string& caller) {
    options_.caller = caller;
    v1::RolloutRequest request = Named();
    Resolved resolved;
    return validation::ReasonOf(Resolve(options_, request, resolved));
  }

  const v1::Program program_ = conversion::ProgramToProto(sim::large::LargeProgram(1'000));
  const std::string content_ = program_.SerializeAsString();
  scheduling::MemoryBudget memory_{int64_t{1} << 30};
  Contents contents_{{.max_bytes = int64_t{1} << 24}};
  conversion::ProgramCache cache_{{}, [](conversion::ProgramCache::Lookup) {}};
  ReferenceOptions options_;
  std::vector<int64_t> taken_;
};

TEST_F(ReferencesTest, AProgramIsReadOnceAsLongAsItsWorldIsKept) {
  double first = 0, again = 0;
  const auto world = WorldOf(&first);
  ASSERT_NE(world, nullptr);
  EXPECT_EQ(conversion::ProgramToProto(world->program).SerializeAsString(), content_);
  EXPECT_EQ(taken_, std::vector<int64_t>{static_cast<int64_t>(content_.size())});
  EXPECT_EQ(WorldOf(&again), world);
  EXPECT_EQ(taken_.size(), 1u);
  EXPECT_GT(first, 0.0);
  EXPECT_EQ(again, 0.0);

  v1::World whole;
  *whole.mutable_program() = program_;
  EXPECT_EQ(*cache_.World(whole, "world"), world);  // one world, however it is sent
}

TEST_F(ReferencesTest, AWorldThatTheCacheGaveUpIsMadeAgain) {
  EXPECT_NE(WorldOf(), nullptr);
  EXPECT_GT(cache_.Relieve(1), 0);
  EXPECT_EQ(cache_.OfContent(kDigest), nullptr);
  EXPECT_NE(WorldOf(), nullptr);
  EXPECT_EQ(taken_.size(), 2u);
}

TEST_F(ReferencesTest, OnlyACallerThatHasTheContentHasTheWorld) {
  EXPECT_NE(WorldOf(), nullptr);
  EXPECT_EQ(ReasonOf("eve"), "TENSOR_GONE");
  Keep(content_, kDigest, "eve");
  EXPECT_EQ(ReasonOf("eve"), "");
  contents_.Relieve(int64_t{1} << 30);
  ASSERT_NE(cache_.OfContent(kDigest), nullptr);  // but nobody has the content
  EXPECT_EQ(ReasonOf("ada"), "TENSOR_GONE");
}

// A program that need not be read counts as one that is.
TEST_F(ReferencesTest, ARequestHasNoMoreThanItMay) {
  const std::string tensor(content_.size(), '\0');
  Keep(tensor, kTensorDigest, "ada");
  options_.max_request_bytes = 2 * static_cast<int64_t>(content_.size());
  for (const bool is_known : {false, true}) {
    SCOPED_TRACE(is_known);
    EXPECT_EQ(cache_.OfContent(kDigest) != nullptr, is_known);
    v1::RolloutRequest request = Named();
    v1::Tensor& sent = *request.mutable_spec()->add_initial()->mutable_tensor();
    sent.set_dtype(v1::DTYPE_U8);
    sent.set_ref(kTensorDigest);
    Resolved resolved;
    const absl::Status status = Resolve(options_, request, resolved);
    EXPECT_EQ(validation::ReasonOf(status), "LIMIT_EXCEEDED");
    EXPECT_EQ(sim::FieldOf(status), "spec.initial[0].tensor.ref");
  }
}

TEST_F(ReferencesTest, ARefusalOfAProgramNamesItsFieldEachTime) {
  v1::Program wrong = program_;
  wrong.mutable_step()->mutable_ops(0)->add_operands(1'000'000);
  const std::string digest(32, 'w');
  Keep(wrong.SerializeAsString(), digest, "ada");
  for (int k = 0; k < 2; ++k) {
    v1::CompareRequest request;
    *request.mutable_rollout() = Named();
    request.add_variants();
    request.add_variants()->mutable_world()->set_program_ref(digest);
    Resolved resolved;
    const absl::Status status = Resolve(options_, request, resolved);
    EXPECT_EQ(validation::ReasonOf(status), "INVALID_FIELD");
    EXPECT_TRUE(sim::FieldOf(status).starts_with("variants[1].world.program.step.ops[0]"))
        << sim::FieldOf(status);
  }
}

TEST_F(ReferencesTest, WorldsOfContentsAreBounded) {
  conversion::ProgramCache cache({.max_entries = 4}, [](conversion::ProgramCache::Lookup) {});
  v1::World whole;
  *whole.mutable_program() = program_;
  const auto world = *cache.World(whole, "world");
  for (int k = 0; k < 100; ++k) {
    cache.SetOfContent(std::to_string(k), world);
    EXPECT_EQ(cache.OfContent(std::to_string(k)), world);
  }
  int known = 0;
  for (int k = 0; k < 100; ++k) known += cache.OfContent(std::to_string(k)) != nullptr ? 1 : 0;
  EXPECT_LE(known, 8);
}

}  // namespace
}  // namespace simgrad::server::service
