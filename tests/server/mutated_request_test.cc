// Truncated and damaged requests never crash the checks, and never pass for what they are not.
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
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
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + below(8));
        break;
      default:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40)));
    }
  }
  return bytes;
}

// Changes one number, word or list somewhere in the message, so that it still parses.
void Spoil(google::protobuf::Message& message, std::mt19937_64& random) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  if (fields.empty()) return;
  const FieldDescriptor* field = fields[random() % fields.size()];
  const int64_t numbers[] = {-1, 0, 1, 2, 7, 1 << 20, int64_t{1} << 40, INT64_MIN, INT64_MAX};
  const int64_t number = numbers[random() % std::size(numbers)];
  const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 0;
  const int at = size > 0 ? static_cast<int>(random() % static_cast<uint64_t>(size)) : 0;
  if (field->is_repeated() && random() % 8 == 0) return reflection->RemoveLast(&message, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (random() % 16 == 0) return reflection->ClearField(&message, field);
      Spoil(field->is_repeated() ? *reflection->MutableRepeatedMessage(&message, field, at)
                                 : *reflection->MutableMessage(&message, field),
            random);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      if (field->is_repeated()) return reflection->SetRepeatedInt64(&message, field, at, number);
      return reflection->SetInt64(&message, field, number);
    case FieldDescriptor::CPPTYPE_INT32:
      if (field->is_repeated()) {
        return reflection->SetRepeatedInt32(&message, field, at, static_cast<int32_t>(number));
      }
      return reflection->SetInt32(&message, field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_STRING:
      if (field->is_repeated()) return reflection->SetRepeatedString(&message, field, at, "while");
      return reflection->SetString(&message, field, random() % 2 == 0 ? "" : "sum");
    default:
      return reflection->ClearField(&message, field);
  }
}

// What every answer to a damaged request must be.
bool IsAccepted(const v1::GradientRequest& request, conversion::ProgramCache& cache,
                const PrepareOptions& options) {
  const auto prepared = Prepare(request, cache, options);
  if (prepared.ok()) return true;
  EXPECT_FALSE(sim::FieldOf(prepared.status()).empty()) << prepared.status();
  EXPECT_TRUE(absl::IsInvalidArgument(prepared.status()) ||
              absl::IsUnimplemented(prepared.status()))
      << prepared.status();
  return false;
}

class MutatedRequest : public ::testing::Test {
 protected:
  MutatedRequest() {
    google::protobuf::SetLogHandler(nullptr);
    options_.limits.max_instances = 4096;
    for (const std::string& original : originals_) {
      v1::GradientRequest request;
      EXPECT_TRUE(request.ParseFromString(original));
      EXPECT_TRUE(Prepare(request, cache_, options_).ok())
          << Prepare(request, cache_, options_).status();
    }
  }

  std::mt19937_64 random_{20240607};
  conversion::ProgramCache cache_{{}, [](conversion::ProgramCache::Lookup) {}};
  PrepareOptions options_;
  const std::vector<std::string> originals_ = Originals();
};

TEST_F(MutatedRequest, DamagedBytesAreAnsweredWithAFieldOrAreValid) {
  int parsed = 0, accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    v1::GradientRequest request;
    if (!request.ParseFromString(Damage(originals_[i % 2], random_))) continue;
    ++parsed;
    accepted += IsAccepted(request, cache_, options_) ? 1 : 0;
  }
  // The loop must have reached the checks and what is behind them.
  EXPECT_GT(parsed, 500);
  EXPECT_GT(accepted, 50);
  EXPECT_LT(accepted, parsed);
}

TEST_F(MutatedRequest, SpoiledMessagesAreAnsweredWithAFieldOrAreValid) {
  constexpr int kRequests = 6000;
  int accepted = 0;
  for (int i = 0; i < kRequests; ++i) {
    v1::GradientRequest request;
    ASSERT_TRUE(request.ParseFromString(originals_[i % 2]));
    for (uint64_t k = random_() % 3 + 1; k > 0; --k) Spoil(request, random_);
    accepted += IsAccepted(request, cache_, options_) ? 1 : 0;
  }
  EXPECT_GT(accepted, kRequests / 20);
  EXPECT_LT(accepted, kRequests);
}

TEST_F(MutatedRequest, RandomBytesNeverPass) {
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random_() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    v1::GradientRequest request;
    if (request.ParseFromString(bytes)) {
      EXPECT_FALSE(Prepare(request, cache_, options_).ok());
    }
  }
}

}  // namespace
}  // namespace simgrad::server::service
