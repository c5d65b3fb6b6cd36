// Every RPC through a real channel.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstring>

#include "precision/policy.h"
#include "server/conversion/program_to_proto.h"
#include "sim/worlds/worlds.h"
#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"
#include "tests/sim/program/shaped_programs.h"

namespace simgrad::server {
namespace {

// A unary call of a method whose messages are given as bytes.
std::string CallRaw(RunningServer& server, const std::string& method, const std::string& request,
                    grpc::Status* status) {
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  call->Finish(&response, status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (status->ok()) (void)response.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

// HealthCheckRequest{service = 1} and HealthCheckResponse{status = 1}: 1 serving, 2 not serving.
int Health(RunningServer& server, const std::string& service) {
  const std::string request =
      service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::Status status;
  const std::string response = CallRaw(server, "/grpc.health.v1.Health/Check", request, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.size() == 2 && response[0] == 0x08 ? response[1] : -1;
}

TEST(Service, ServerInfoTellsWhatThereIs) {
  RunningServer server;
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.port(), server.server().port());
  EXPECT_EQ(info.metrics_port(), server.server().metrics_port());
  EXPECT_EQ(info.worlds_size(), static_cast<int>(sim::BuiltInWorlds().size()));
  EXPECT_EQ(info.presets_size(), static_cast<int>(precision::PresetNames().size()));
  EXPECT_EQ(info.orders_size(), precision::kOrderCount);
  EXPECT_EQ(info.limits().max_message_bytes(), 4 << 20);
  EXPECT_EQ(info.limits().max_request_bytes(), 64 << 20);
  const sim::LoweredLimits lowered;
  EXPECT_EQ(info.limits().max_lowered_operations(), lowered.max_operations);
  EXPECT_EQ(info.limits().max_lowered_bytes(), lowered.max_bytes);
  EXPECT_EQ(info.limits().max_lowered_text_bytes(), lowered.max_text_bytes);
  EXPECT_EQ(info.limits().max_lowered_operands(), lowered.max_operands);
  EXPECT_EQ(info.limits().max_lowered_visits(), lowered.max_visits);
  EXPECT_EQ(info.limits().max_permuted_numbers(), lowered.max_permuted);
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).kind(), "cpu");
  EXPECT_EQ(info.devices(0).formats().at("f32"), "native");
  EXPECT_EQ(info.devices(0).formats().at("bf16"), "emulated");
}

TEST(Service, ListWorldsGivesSchemasWithDefaults) {
  RunningServer server;
  grpc::ClientContext context;
  v1::ListWorldsResponse worlds;
  ASSERT_TRUE(server.stub().ListWorlds(&context, {}, &worlds).ok());
  ASSERT_EQ(worlds.worlds_size(), static_cast<int>(sim::BuiltInWorlds().size()));
  const v1::WorldSchema& ball = worlds.worlds(0);
  EXPECT_EQ(ball.name(), "bouncing_ball");
  bool gravity = false;
  for (const v1::InputSchema& input : ball.inputs()) {
    if (input.name() != "g") continue;
    gravity = input.default_value() == 9.81 && input.kind() == v1::INPUT_KIND_PARAM &&
              input.differentiable();
  }
  EXPECT_TRUE(gravity);
  for (const v1::WorldSchema& world : worlds.worlds()) {
    for (const v1::InputSchema& input : world.inputs()) {
      if (input.name() != "y" && input.name() != "k") continue;
      const std::vector<int64_t> shape(input.shape().begin(), input.shape().end());
      EXPECT_EQ(shape, input.name() == "y" ? std::vector<int64_t>{-1} : std::vector<int64_t>{});
    }
  }
  EXPECT_EQ(ball.objectives_size(), 4);
  EXPECT_EQ(ball.termination_sites(0), "projection");
}

TEST(Service, TheSourceOfAProgramRunsToTheSameBits) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(50, 4);
  request.mutable_spec()->mutable_policy()->set_preset("f16_unsafe");
  request.mutable_spec()->set_objective("final_height");
  request.mutable_spec()->add_record("y");
  request.mutable_spec()->set_program(v1::PROGRAM_DETAIL_TEXT);
  v1::DescribeProgramRequest describe;
  *describe.mutable_world() = request.spec().world();
  *describe.mutable_policy() = request.spec().policy();
  describe.set_objective("final_height");
  grpc::ClientContext context;
  v1::DescribeProgramResponse description;
  ASSERT_TRUE(server.stub().DescribeProgram(&context, describe, &description).ok());

  const auto named = Ask(server, request);
  ASSERT_TRUE(named.status.ok()) << named.status.error_message();
  EXPECT_EQ(named.header().program().fingerprint(), description.program().fingerprint());
  EXPECT_EQ(named.header().program().text(), description.program().text());
  *request.mutable_spec()->mutable_world()->mutable_program() = description.source();
  request.mutable_spec()->mutable_world()->clear_config();
  const auto inlined = Ask(server, request);
  ASSERT_TRUE(inlined.status.ok()) << inlined.status.error_message();
  EXPECT_EQ(inlined.header().program().fingerprint(), description.program().fingerprint());
  EXPECT_EQ(inlined.trajectory("y"), named.trajectory("y"));
  EXPECT_EQ(inlined.result().values(), named.result().values());
  EXPECT_EQ(inlined.result().path_signatures(), named.result().path_signatures());
}

// A chain of so many operations, and a rollout of one step of it.
v1::RolloutRequest ChainRollout(int operations) {
  v1::RolloutRequest request;
  *request.mutable_spec()->mutable_world()->mutable_program() =
      conversion::ProgramToProto(sim::shaped::Chain(sim::OpCode::kSin, operations));
  request.mutable_spec()->set_steps(1);
  AddTensor(request.mutable_spec()->mutable_initial(), "x", {0.5}, {});
  return request;
}

TEST(Service, AHeaderHasTheTextOfItsProgramWhereItIsAskedFor) {
  RunningServer server;
  v1::RolloutRequest request = ChainRollout(5'000);
  v1::DescribeProgramRequest describe;
  *describe.mutable_world() = request.spec().world();
  grpc::ClientContext context;
  v1::DescribeProgramResponse described;
  ASSERT_TRUE(server.stub().DescribeProgram(&context, describe, &described).ok());
  ASSERT_GT(described.program().text().size(), 100'000u);

  for (const v1::ProgramDetail detail :
       {v1::PROGRAM_DETAIL_UNSPECIFIED, v1::PROGRAM_DETAIL_FINGERPRINT}) {
    request.mutable_spec()->set_program(detail);
    const auto answer = Ask(server, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_LT(answer.header().ByteSizeLong(), 2'000u);
    v1::ProgramInfo without_text = described.program();
    without_text.clear_text();
    EXPECT_EQ(DeterministicBytes(answer.header().program()), DeterministicBytes(without_text));
  }
  request.mutable_spec()->set_program(v1::PROGRAM_DETAIL_TEXT);
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(DeterministicBytes(answer.header().program()), DeterministicBytes(described.program()));
}

TEST(Service, TheAdjointOfAGradientCanBeDescribed) {
  RunningServer server;
  v1::GradientRequest request = BallGradient(5, 3);
  request.mutable_spec()->set_program(v1::PROGRAM_DETAIL_TEXT);
  v1::InputName* name = request.add_wrt();
  name->set_kind(v1::INPUT_KIND_PARAM);
  name->set_name("k");
  AddTensor(request.add_cotangents()->mutable_trajectory(), "penetration",
            std::vector<double>(15, 1.0), {3, 5, 1});
  AddTensor(request.mutable_cotangents(0)->mutable_final_state(), "v", std::vector<double>(3, 1.0),
            {3, 1});
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();

  v1::DescribeProgramRequest describe;
  *describe.mutable_world() = request.spec().world();
  *describe.mutable_policy() = request.spec().policy();
  describe.set_objective(request.spec().objective());
  describe.set_adjoint(true);
  *describe.mutable_wrt() = request.wrt();
  describe.add_cotangent_final_state("v");
  describe.add_cotangent_trajectory("penetration");
  grpc::ClientContext context;
  v1::DescribeProgramResponse described;
  ASSERT_TRUE(server.stub().DescribeProgram(&context, describe, &described).ok());
  EXPECT_EQ(answer.header().program().text(), described.program().text());
}

TEST(Service, ARolloutStreamsHeaderBlocksTrajectoryAndResult) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(300, 20);
  request.mutable_spec()->set_chunk_steps(16);
  request.mutable_spec()->set_objective("final_penetration");
  for (const char* name : {"penetration", "y"}) request.mutable_spec()->add_record(name);
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(answer.parts.front().has_header());
  ASSERT_TRUE(answer.parts.back().has_result());
  EXPECT_EQ(answer.header().instances(), 20);
  EXPECT_EQ(answer.header().trajectory(0).name(), "penetration");
  EXPECT_EQ(answer.header().trajectory(0).times(), 300);
  EXPECT_EQ(answer.header().trajectory(1).times(), 301);
  int64_t next = 0;
  for (const v1::DiagnosticsBlock& block : answer.blocks()) {
    EXPECT_EQ(block.first_step(), next);
    next += block.steps();
  }
  EXPECT_EQ(next, 300);
  // The first time of the trajectory is what was sent, the last is the final state.
  const std::string y = answer.trajectory("y");
  ASSERT_EQ(y.size(), 20u * 301u * 4u);
  const std::string& last = answer.result().final_state(0).tensor().inline_();
  for (size_t i = 0; i < 20; ++i) {
    float first = 0;
    std::memcpy(&first, y.data() + i * 301 * 4, 4);
    EXPECT_EQ(first, static_cast<float>(0.1 + 0.9 * static_cast<double>(i) / 20.0));
    EXPECT_EQ(y.substr((i * 301 + 300) * 4, 4), last.substr(i * 4, 4));
  }
  EXPECT_EQ(answer.result().health().ok(), std::string(20, 1));
  EXPECT_EQ(answer.result().path_signatures().size(), 8u * 20u);
  EXPECT_EQ(answer.result().first_events(0).steps().size(), 8u * 20u);
}

TEST(Service, NoBitDependsOnChunksOrDiagnostics) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(100, 9);
  request.mutable_spec()->add_record("y");
  const auto expected = Ask(server, request);
  ASSERT_TRUE(expected.status.ok());
  for (int64_t chunk : {1, 7, 100}) {
    for (auto level : {v1::DIAGNOSTICS_LEVEL_OFF, v1::DIAGNOSTICS_LEVEL_INSTANCES}) {
      request.mutable_spec()->set_chunk_steps(chunk);
      request.mutable_spec()->mutable_diagnostics()->set_level(level);
      const auto answer = Ask(server, request);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_EQ(answer.trajectory("y"), expected.trajectory("y"));
      EXPECT_EQ(answer.result().path_signatures(), expected.result().path_signatures());
      EXPECT_EQ(answer.blocks().empty(), level == v1::DIAGNOSTICS_LEVEL_OFF);
    }
  }
}

TEST(Service, LevelInstancesTellsWhatEachInstanceDid) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(30, 5);
  request.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_INSTANCES);
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok());
  uint64_t from_instances = 0;
  double from_summary = 0;
  for (const v1::DiagnosticsBlock& block : answer.blocks()) {
    for (const v1::InstanceColumns& columns : block.instances()) {
      for (size_t i = 0; i < columns.iterations().size(); i += 4) {
        uint32_t count = 0;
        std::memcpy(&count, columns.iterations().data() + i, 4);
        from_instances += count;
      }
    }
    for (const v1::TerminationColumns& columns : block.terminations()) {
      for (int i = 0; i < columns.runs_size(); ++i) {
        from_summary += columns.iterations_mean(i) * static_cast<double>(columns.runs(i));
      }
    }
  }
  EXPECT_GT(from_instances, 0u);
  // Means of at most five runs are off by less than an ulp each.
  EXPECT_NEAR(from_summary, static_cast<double>(from_instances), 1e-9);
}

TEST(Service, AGradientComesWithItsRolloutAndReversePass) {
  RunningServer server;
  v1::GradientRequest request = BallGradient(60, 8);
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::GradientResult& result = answer.result();
  ASSERT_EQ(result.gradients_size(), 3);  // y, v, k were sent
  EXPECT_EQ(result.gradients(0).name(), "y");
  EXPECT_EQ(result.gradients(0).gradient().shape(0), 8);
  EXPECT_EQ(result.gradients(0).connected(), 8);
  EXPECT_EQ(result.gradients(2).gradient().shape_size(), 0);
  EXPECT_EQ(result.rollout().values().size(), 64u);
  int64_t reversed = 0;
  for (const auto& part : answer.parts) {
    if (part.has_backward()) reversed += part.backward().steps();
  }
  EXPECT_EQ(reversed, 60);
}

TEST(Service, ACotangentOfTheFinalStateIsTheGradientOfItsSum) {
  RunningServer server;
  v1::GradientRequest by_objective = BallGradient(40, 3);
  by_objective.mutable_spec()->mutable_policy()->set_preset("f64");
  v1::GradientRequest by_cotangent = by_objective;
  by_cotangent.mutable_spec()->clear_objective();
  AddTensor(by_cotangent.add_cotangents()->mutable_final_state(), "y", {1, 1, 1}, {3, 1});
  const auto objective = Ask(server, by_objective);
  const auto cotangent = Ask(server, by_cotangent);
  ASSERT_TRUE(cotangent.status.ok()) << cotangent.status.error_message();
  // One element: the mean is the value itself, so the seeds are equal.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cotangent.result().gradients(i).gradient().inline_(),
              objective.result().gradients(i).gradient().inline_());
  }
  EXPECT_FALSE(cotangent.result().rollout().has_value());
}

TEST(Service, AnErrorCarriesFieldReasonAndRequestId) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(5);
  request.mutable_spec()->mutable_policy()->set_preset("f31");
  const auto answer = Ask(server, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(answer.parts.empty());
  const Details details = DetailsOf(answer.status);
  EXPECT_EQ(details.info.reason(), "INVALID_FIELD");
  EXPECT_EQ(details.info.domain(), "simgrad");
  EXPECT_EQ(details.info.metadata().at("request_id").size(), 16u);
  ASSERT_EQ(details.bad_request.field_violations_size(), 1);
  EXPECT_EQ(details.bad_request.field_violations(0).field(), "spec.policy.preset");
  EXPECT_EQ(answer.status.error_message().rfind("spec.policy.preset: ", 0), 0u);
  EXPECT_EQ(details.bad_request.field_violations(0).description().rfind("unknown preset", 0), 0u);
}

TEST(Service, EveryMethodRefusesAFieldThatItDoesNotKnow) {
  RunningServer server;
  const std::string field_17 = "\x88\x01\x01";
  for (const char* method :
       {"GetServerInfo", "ListWorlds", "DescribeProgram", "Rollout", "Gradient"}) {
    grpc::Status status;
    CallRaw(server, std::string("/simgrad.v1.Simgrad/") + method, field_17, &status);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    const Details details = DetailsOf(status);
    EXPECT_EQ(details.info.reason(), "INVALID_FIELD") << method;
    ASSERT_EQ(details.bad_request.field_violations_size(), 1) << method;
    EXPECT_EQ(details.bad_request.field_violations(0).field(), "request") << method;
    EXPECT_NE(status.error_message().find("unknown field 17"), std::string::npos) << method;
  }
}

TEST(Service, WhatIsNotThereYetIsUnimplementedByName) {
  RunningServer server;
  v1::GradientRequest request = BallGradient(5);
  request.add_cotangents();
  request.add_cotangents();
  const auto answer = Ask(server, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(DetailsOf(answer.status).info.reason(), "NOT_SUPPORTED");
  EXPECT_EQ(DetailsOf(answer.status).bad_request.field_violations(0).field(), "cotangents[1]");
}

TEST(Service, ANonFiniteInstanceIsAResult) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(10, 4);
  SetDoubles({0.5, std::nan(""), 0.5, 0.5}, {4, 1},
             *request.mutable_spec()->mutable_initial(0)->mutable_tensor());
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result().health().ok(), std::string("\1\0\1\1", 4));
  ASSERT_EQ(answer.result().health().index_size(), 1);
  EXPECT_EQ(answer.result().health().index(0), 1);
  EXPECT_EQ(answer.result().health().phase(0), "input");
  ASSERT_EQ(answer.result().certificates_size(), 1);
  EXPECT_EQ(answer.result().certificates(0).instance_id(), 1u);
}

TEST(Service, HealthAnswersForTheServerAndTheService) {
  RunningServer server;
  EXPECT_EQ(Health(server, ""), 1);
  EXPECT_EQ(Health(server, "simgrad.v1.Simgrad"), 1);
  server.server().StopAdmission();
  EXPECT_EQ(Health(server, ""), 2);
  EXPECT_EQ(Health(server, "simgrad.v1.Simgrad"), 2);
}

TEST(Service, ReflectionNamesTheService) {
  RunningServer server;
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  // ServerReflectionRequest{list_services = 7: ""}.
  const grpc::Slice slice(std::string("\x3a\x00", 2));
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  queue.Next(&tag, &ok);
  ASSERT_TRUE(ok);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(response.Dump(&slices).ok());
  std::string bytes;
  for (const auto& part : slices)
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  EXPECT_NE(bytes.find("simgrad.v1.Simgrad"), std::string::npos);
  call->WritesDone(nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
}

TEST(Service, ATakenPortAndAForeignAddressAreErrorsThatSaySo) {
  RunningServer server;
  config::ServerConfig config = FreePorts();
  config.port = server.server().port();
  EXPECT_FALSE(service::Server::Create(config).ok());
  config = FreePorts();
  config.metrics_port = server.server().metrics_port();
  EXPECT_FALSE(service::Server::Create(config).ok());
}

}  // namespace
}  // namespace simgrad::server
