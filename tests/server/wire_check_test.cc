// What a request's bytes say beyond its message type is refused with its path; nothing is ignored.
#include "server/validation/wire_check.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/conversion/program_to_proto.h"
#include "server/validation/request_error.h"
#include "sim/program/field_error.h"
#include "sim/worlds/worlds.h"
#include "tests/sanitized.h"
#include "tests/server/ball_request.h"

namespace simgrad::server::validation {
namespace {

using google::protobuf::Message;

template <class Request>
absl::Status Check(const std::string& bytes) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  return CheckWire<Request>(stream);
}

template <class Request>
absl::Status Check(const Request& request) {
  return Check<Request>(request.SerializeAsString());
}

void AddUnknown(Message& message, int number) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 1);
}

v1::Program BallProgram() {
  const auto ball = sim::BuildWorld("bouncing_ball", {{"scope", std::string("element")}});
  return conversion::ProgramToProto(*ball);
}

v1::GradientRequest Everything() {
  v1::GradientRequest request = BallGradient(4, 3);
  v1::RolloutSpec* spec = request.mutable_spec();
  for (uint64_t id : {uint64_t{1}, uint64_t{300}, ~uint64_t{0}}) spec->add_instance_ids(id);
  spec->add_record("y");
  spec->mutable_policy()->add_roles()->mutable_setting()->set_order("exact");
  spec->mutable_diagnostics()->set_stride(2);
  for (double weight : {1.0, 2.0, 3.0}) request.add_weights(weight);
  AddTensor(request.add_cotangents()->mutable_final_state(), "y", {1, 2, 3}, {3, 1});
  request.add_wrt()->set_name("k");
  return request;
}

struct Refused {
  absl::Status status;
  const char* field;
  const char* told;
};

void Expect(const Refused& refused) {
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status)) << refused.field;
  EXPECT_EQ(sim::FieldOf(refused.status), refused.field) << refused.status;
  EXPECT_EQ(ReasonOf(refused.status), "INVALID_FIELD");
  EXPECT_NE(std::string(refused.status.message()).find(refused.told), std::string::npos)
      << refused.status;
}

TEST(WireCheck, WhatIsRightPasses) {
  EXPECT_TRUE(Check(Everything()).ok()) << Check(Everything());
  v1::DescribeProgramRequest describe;
  *describe.mutable_world()->mutable_program() = BallProgram();
  describe.mutable_cuda()->add_per_step("u");
  EXPECT_TRUE(Check(describe).ok()) << Check(describe);
  EXPECT_TRUE(Check(v1::GetServerInfoRequest()).ok());
  EXPECT_TRUE(Check(v1::ListWorldsRequest()).ok());
}

template <class Request, class Spoil>
absl::Status Spoiled(Request request, Spoil spoil) {
  spoil(request);
  return Check(request);
}

TEST(WireCheck, AnUnknownFieldIsRefusedWithThePathOfItsMessage) {
  v1::RolloutRequest inlined;
  *inlined.mutable_spec()->mutable_world()->mutable_program() = BallProgram();
  const Refused cases[] = {
      {Spoiled(BallRollout(1), [](auto& r) { AddUnknown(r, 17); }), "request", "unknown field 17"},
      {Spoiled(BallRollout(1), [](auto& r) { AddUnknown(r, 3); }), "request", "reserved field 3"},
      {Spoiled(Everything(), [](auto& r) { AddUnknown(r, 9); }), "request", "reserved field 9"},
      {Spoiled(BallRollout(1), [](auto& r) { AddUnknown(*r.mutable_spec(), 40); }), "spec",
       "unknown field 40"},
      {Spoiled(BallRollout(1),
               [](auto& r) {
                 auto& config = *r.mutable_spec()->mutable_world()->mutable_config();
                 AddUnknown(config["contact"], 9);
               }),
       "spec.world.config[contact]", "unknown field 9"},
      {Spoiled(inlined,
               [](auto& r) {
                 auto* step = r.mutable_spec()->mutable_world()->mutable_program()->mutable_step();
                 AddUnknown(*step->mutable_ops(3), 170);
               }),
       "spec.world.program.step.ops[3]", "unknown field 170"},
      {Spoiled(
           Everything(),
           [](auto& r) { AddUnknown(*r.mutable_spec()->mutable_initial(1)->mutable_tensor(), 5); }),
       "spec.initial[1].tensor", "unknown field 5"},
      {Spoiled(Everything(),
               [](auto& r) { AddUnknown(*r.mutable_cotangents(0)->mutable_final_state(0), 4); }),
       "cotangents[0].final_state[0]", "unknown field 4"},
      {Spoiled(v1::DescribeProgramRequest(), [](auto& r) { AddUnknown(*r.mutable_cuda(), 3); }),
       "cuda", "unknown field 3"},
      {Spoiled(v1::GetServerInfoRequest(), [](auto& r) { AddUnknown(r, 1); }), "request",
       "unknown field 1"},
      {Spoiled(v1::ListWorldsRequest(), [](auto& r) { AddUnknown(r, 536870911); }), "request",
       "unknown field 536870911"},
  };
  for (const Refused& refused : cases) Expect(refused);
}

TEST(WireCheck, AFieldOfAnotherTypeOrSentTwiceIsRefused) {
  v1::RolloutRequest steps;
  steps.mutable_spec()->set_steps(3);
  v1::RolloutRequest name;
  name.mutable_spec()->mutable_world()->set_name("ball");
  const std::string twice = steps.SerializeAsString() + steps.SerializeAsString();
  std::string spec = steps.spec().SerializeAsString() + steps.spec().SerializeAsString();
  const std::string twice_inside = "\x0a" + std::string(1, static_cast<char>(spec.size())) + spec;
  std::string world =
      "\x0a\x01"
      "a"
      "\x12\x00";  // a name, then a program
  world.resize(5);
  spec = "\x0a" + std::string(1, static_cast<char>(world.size())) + world;
  const std::string both = "\x0a" + std::string(1, static_cast<char>(spec.size())) + spec;
  const std::string entry = std::string("\x1a\x07\x0a\x01k\x12\x02\x18\x01");
  spec = "\x0a" + std::string(1, static_cast<char>(2 * entry.size())) + entry + entry;
  const std::string keys = "\x0a" + std::string(1, static_cast<char>(spec.size())) + spec;
  const std::string as_bytes = std::string("\x0a\x03\x12\x01", 4) + "x";  // steps as a string
  for (const Refused& refused : {
           Refused{Check<v1::RolloutRequest>(twice), "spec", "stands twice"},
           Refused{Check<v1::RolloutRequest>(twice_inside), "spec.steps", "stands twice"},
           Refused{Check<v1::RolloutRequest>(both), "spec.world.program",
                   "only member of 'source'"},
           Refused{Check<v1::RolloutRequest>(keys), "spec.world.config[k]", "twice in the map"},
           Refused{Check<v1::RolloutRequest>(as_bytes), "spec", "(steps)"},
       }) {
    Expect(refused);
  }
}

TEST(WireCheck, ManySmallPartsAreRefusedBeforeTheyTakeMemory) {
  v1::RolloutRequest request;
  v1::Region* step = request.mutable_spec()->mutable_world()->mutable_program()->mutable_step();
  for (int i = 0; i < 50'000; ++i) step->add_ops()->set_code("add");
  EXPECT_TRUE(Check(request).ok());  // the most that a program may have
  for (int i = 0; i < 1'000'000; ++i) step->add_ops();
  const absl::Status status = Check(request);
  EXPECT_EQ(ReasonOf(status), "LIMIT_EXCEEDED") << status;
  EXPECT_EQ(sim::FieldOf(status).rfind("spec.world.program.step.ops[", 0), 0u) << status;
  v1::RolloutRequest keys;
  auto& config = *keys.mutable_spec()->mutable_world()->mutable_config();
  for (size_t i = 0; i < kMostKeys; ++i) config["k" + std::to_string(i)].set_number(1);
  EXPECT_TRUE(Check(keys).ok()) << Check(keys);
  config["one more"].set_number(1);
  EXPECT_EQ(ReasonOf(Check(keys)), "LIMIT_EXCEEDED") << Check(keys);
  EXPECT_EQ(sim::FieldOf(Check(keys)).rfind("spec.world.config[", 0), 0u) << Check(keys);
  v1::GradientRequest numbers;
  for (int i = 0; i < (1 << 20); ++i) {
    numbers.mutable_spec()->add_instance_ids(static_cast<uint64_t>(i));
    numbers.add_weights(1.0);
  }
  EXPECT_TRUE(Check(numbers).ok()) << Check(numbers);  // the largest batch
}

bool HasUnknown(const Message& message) {
  const auto* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) return true;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      if (HasUnknown(reflection->GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      if (HasUnknown(reflection->GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

constexpr int kDamaged = kSanitized ? 2'000 : 20'000;  // of each request

TEST(WireCheck, OfDamagedBytesThatPassNothingIsUnknownToTheParser) {
  const google::protobuf::LogSilencer quiet;
  v1::GradientRequest inlined = Everything();
  *inlined.mutable_spec()->mutable_world()->mutable_program() = BallProgram();
  std::mt19937_64 random(11);
  int unknown = 0, passed = 0, refused = 0;
  for (const std::string& original :
       {Everything().SerializeAsString(), inlined.SerializeAsString()}) {
    for (int i = 0; i < kDamaged; ++i) {
      std::string bytes = original;
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
      }
      const absl::Status status = Check<v1::GradientRequest>(bytes);
      v1::GradientRequest request;
      if (!request.ParseFromString(bytes)) continue;
      ++(status.ok() ? passed : refused);
      const bool has_unknown = HasUnknown(request);
      unknown += has_unknown;
      ASSERT_FALSE(status.ok() && has_unknown) << i << ": " << request.DebugString();
    }
  }
  EXPECT_GT(unknown, kDamaged / 20);
  EXPECT_GT(refused, unknown - 1);
  EXPECT_GT(passed, kDamaged / 20);
}

int RepeatedNumbers(const google::protobuf::Descriptor* type) {
  int packed = 0;
  for (int i = 0; i < type->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = type->field(i);
    if (!field->is_packable()) continue;
    EXPECT_TRUE(field->is_packed()) << field->full_name() << " takes a tag for each number";
    ++packed;
  }
  for (int i = 0; i < type->nested_type_count(); ++i)
    packed += RepeatedNumbers(type->nested_type(i));
  return packed;
}

// An error is UTF-8, whatever was sent.
TEST(WireCheck, AKeyThatIsNoTextIsEscapedInThePath) {
  v1::World entry;
  (*entry.mutable_config())["K"].set_number(1);
  std::string once = entry.SerializeAsString();
  once[once.find('K')] = '\xFF';
  const absl::Status status = Check<v1::World>(once + once);
  EXPECT_EQ(sim::FieldOf(status), "config[\\xff]") << status;
  EXPECT_NE(status.message().find("UTF-8"), std::string::npos) << status;
}

TEST(WireCheck, TextThatIsNoUtf8IsRefusedByItsField) {
  v1::RolloutSpec spec;
  spec.mutable_world()->mutable_program()->add_values()->set_name(
      "K\xC3\xA9");  // K and an e with accent
  const std::string bytes = spec.SerializeAsString();
  EXPECT_TRUE(Check<v1::RolloutSpec>(bytes).ok());
  std::string cut = bytes;
  cut[cut.find('\xA9')] = 'A';
  const absl::Status status = Check<v1::RolloutSpec>(cut);
  EXPECT_EQ(sim::FieldOf(status), "world.program.values[0].name") << status;
  EXPECT_EQ(ReasonOf(status), "INVALID_FIELD");
}

TEST(WireCheck, MessagesInOneAnotherBeyondTheParsersDepthAreALimit) {
  const auto nested = [](int depth) {
    v1::Program program;
    v1::Region* region = program.mutable_step();
    for (int i = 0; i < depth; ++i) region = region->add_ops()->add_regions();
    region->add_yields(1);
    return Check(program);
  };
  EXPECT_TRUE(nested(48).ok());
  const absl::Status status = nested(60);
  EXPECT_EQ(ReasonOf(status), "LIMIT_EXCEEDED") << status;
  EXPECT_EQ(sim::FieldOf(status).rfind("step.ops[0].regions[0].ops[0]", 0), 0) << status;
}

TEST(WireCheck, NumbersOfAMessageArePacked) {
  int packed = 0;
  for (const google::protobuf::Descriptor* some :
       {v1::GradientRequest::descriptor(), v1::Program::descriptor(), v1::Tensor::descriptor(),
        v1::DiagnosticsBlock::descriptor(), v1::Policy::descriptor()}) {
    for (int i = 0; i < some->file()->message_type_count(); ++i) {
      packed += RepeatedNumbers(some->file()->message_type(i));
    }
  }
  EXPECT_GT(packed, 50);

  v1::Op op;
  for (int i = 0; i < 1000; ++i) op.add_literal(0.1 * i);
  EXPECT_LE(op.ByteSizeLong(), 8 * 1000 + 8u);
  op.Clear();
  for (int i = 0; i < 1000; ++i) op.add_indices(i % 128);
  EXPECT_LE(op.ByteSizeLong(), 1000 + 8u);
}

}  // namespace
}  // namespace simgrad::server::validation
