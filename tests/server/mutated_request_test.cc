// Truncated and damaged requests never crash the checks, and never pass for what they are not.
#include <gtest/gtest.h>

#include <random>

#include "server/conversion/program_to_proto.h"
#include "server/service/prepare.h"
#include "sim/program/field_error.h"
#include "sim/worlds/worlds.h"
#include "tests/server/ball_request.h"

namespace simgrad::server::service {
namespace {

// A gradient request with everything in it, and one whose world is an inline program.
std::vector<std::string> Originals() {
  v1::GradientRequest named = BallGradient(4, 3);
  v1::RolloutSpec* spec = named.mutable_spec();
  AddTensor(spec->mutable_controls(), "u", std::vector<double>(4, 0.1), {4, 1});
  spec->mutable_controls(0)->set_per_step(true);
  spec->add_record("y");
  spec->mutable_policy()->set_preset("f16_safe");
  v1::RoleOverride* role = spec->mutable_policy()->add_roles();
  role->set_role("solver");
  role->mutable_setting()->set_order("exact");
  for (double weight : {1.0, 2.0, 3.0}) named.add_weights(weight);
  AddTensor(named.add_cotangents()->mutable_final_state(), "y", {1, 2, 3}, {3, 1});

  v1::GradientRequest inlined = BallGradient(4, 3);
  const auto ball =
      sim::BuildWorld("bouncing_ball", {{"clamp", false}, {"scope", std::string("element")}});
  inlined.mutable_spec()->mutable_world()->clear_config();
  *inlined.mutable_spec()->mutable_world()->mutable_program() = conversion::ProgramToProto(*ball);
  return {named.SerializeAsString(), inlined.SerializeAsString()};
}

std::string Damage(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size());
    switch (below(5)) {
      case 0: bytes[at] = static_cast<char>(random()); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(at, 1 + below(8)); break;
      default: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40)));
    }
  }
  return bytes;
}

TEST(MutatedRequest, ThousandsOfDamagedRequestsAreAnsweredWithAFieldOrAreValid) {
  constexpr int kRequests = 6000;
  std::mt19937_64 random(20240607);
  conversion::ProgramCache cache(32, [](conversion::ProgramCache::Lookup) {});
  PrepareOptions options;
  options.limits.max_instances = 4096;
  const std::vector<std::string> originals = Originals();
  for (const std::string& original : originals) {
    v1::GradientRequest request;
    ASSERT_TRUE(request.ParseFromString(original));
    ASSERT_TRUE(Prepare(request, cache, options).ok()) << Prepare(request, cache, options).status();
  }
  int parsed = 0, refused = 0, accepted = 0;
  for (int i = 0; i < kRequests; ++i) {
    v1::GradientRequest request;
    if (!request.ParseFromString(Damage(originals[i % 2], random))) continue;
    ++parsed;
    const auto prepared = Prepare(request, cache, options);
    if (prepared.ok()) {
      ++accepted;
      continue;
    }
    ++refused;
    EXPECT_FALSE(sim::FieldOf(prepared.status()).empty()) << prepared.status();
    EXPECT_TRUE(absl::IsInvalidArgument(prepared.status()) ||
                absl::IsUnimplemented(prepared.status()))
        << prepared.status();
  }
  // The loop must have reached the checks and what is behind them.
  EXPECT_GT(parsed, kRequests / 10);
  EXPECT_GT(refused, kRequests / 20);
  EXPECT_GT(accepted, 0);
}

TEST(MutatedRequest, RandomBytesNeverPass) {
  std::mt19937_64 random(7);
  conversion::ProgramCache cache(4, [](conversion::ProgramCache::Lookup) {});
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    v1::GradientRequest request;
    if (request.ParseFromString(bytes)) {
      EXPECT_FALSE(Prepare(request, cache, {}).ok());
    }
  }
}

}  // namespace
}  // namespace simgrad::server::service
