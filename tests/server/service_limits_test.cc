// Requests that end early, do not fit, or are too large for a message.
#include <cmath>
#include <future>

#include "server/conversion/program_to_proto.h"
#include "server/service/request_log.h"
#include "sim/program/builder.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

// Whether a stream is being worked on: its first message has come.
template <class Reader>
void AwaitFirstMessage(Reader& reader) {
  v1::RolloutPart part;
  ASSERT_TRUE(reader.Read(&part));
  EXPECT_TRUE(part.has_header());
}

TEST(ServiceLimits, ACancelledRolloutStopsAndGivesItsMemoryBack) {
  RunningServer server;
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, EndlessRollout());
  AwaitFirstMessage(*reader);
  EXPECT_GT(server.server().queue().memory_used_bytes(), 0);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
}

TEST(ServiceLimits, AnExpiredRolloutStopsAndGivesItsMemoryBack) {
  RunningServer server;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  auto reader = server.Rollout(&context, EndlessRollout());
  for (v1::RolloutPart part; reader->Read(&part);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
}

// A gradient of many chunks, forward and back.
constexpr int64_t kLongSteps = 60'000;
v1::GradientRequest LongGradient() {
  v1::GradientRequest request = BallGradient(kLongSteps, 64);
  request.mutable_spec()->set_chunk_steps(16);
  return request;
}

double Lost(RunningServer& server, const std::string& family, const std::string& phase) {
  return server.Series().at("simgrad_rpc_" + family + "_total{grpc_method=\"Gradient\",phase=\"" +
                            phase + "\"}");
}

double StepsOf(RunningServer& server, const std::string& direction) {
  return server.Series().at("simgrad_steps_total{direction=\"" + direction + "\"}");
}

TEST(ServiceLimits, AGradientCancelledInItsReversePassStopsThereAndGivesItsMemoryBack) {
  RunningServer server;
  grpc::ClientContext context;
  auto reader = server.Gradient(&context, LongGradient());
  v1::GradientPart part;
  while (reader->Read(&part) && part.progress().phase() != "adjoint") {
  }
  ASSERT_EQ(part.progress().phase(), "adjoint");
  EXPECT_GT(server.server().queue().memory_used_bytes(), 0);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Eventually([&] { return Lost(server, "cancelled", "adjoint") == 1; }));
  EXPECT_EQ(StepsOf(server, "forward"), kLongSteps * 64);
  EXPECT_GT(StepsOf(server, "adjoint"), 0);
  EXPECT_LT(StepsOf(server, "adjoint"), kLongSteps * 64);
  EXPECT_EQ(std::fmod(StepsOf(server, "adjoint"), 16 * 64), 0);  // whole chunks
  EXPECT_TRUE(Ask(server, BallGradient(3)).status.ok());
}

TEST(ServiceLimits, AGradientThatExpiresInItsReversePassStopsThereAndGivesItsMemoryBack) {
  RunningServer server;
  // Where a deadline falls is up to the machine, so it is searched for: later than one that fell
  // into the forward pass, earlier than one that let the request end.
  double too_early = 0;
  double too_late = 0;
  for (int attempt = 0; attempt < 60; ++attempt) {
    const double seconds = too_late > 0 ? (too_early + too_late) / 2 : 0.05 + 2 * too_early;
    const double lost_before = Lost(server, "deadline_exceeded", "forward");
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds)));
    auto reader = server.Gradient(&context, LongGradient());
    for (v1::GradientPart part; reader->Read(&part);) {
    }
    reader->Finish();
    ASSERT_TRUE(AllGivenBack(server));
    if (Lost(server, "deadline_exceeded", "adjoint") == 1) break;
    const bool early = Lost(server, "deadline_exceeded", "forward") > lost_before;
    (early ? too_early : too_late) = seconds;
    // A machine that was busier or quieter than before: begin again.
    if (too_late > 0 && too_late - too_early < 0.05 * too_late) too_early = too_late = 0;
  }
  EXPECT_EQ(Lost(server, "deadline_exceeded", "adjoint"), 1);
  EXPECT_TRUE(Ask(server, BallGradient(3)).status.ok());
}

TEST(ServiceLimits, AFullQueueRefusesWithATimeToRetry) {
  config::ServerConfig config = FreePorts();
  config.workers = 1;
  config.queue_capacity = 1;
  RunningServer server(config);
  grpc::ClientContext running_context, waiting_context;
  auto running = server.Rollout(&running_context, EndlessRollout());
  AwaitFirstMessage(*running);
  auto waiting = server.Rollout(&waiting_context, EndlessRollout());
  ASSERT_TRUE(Eventually([&] { return server.server().queue().waiting() == 1; }));
  // Small work has a lane of its own.
  EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
  const auto refused = Ask(server, EndlessRollout());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const Details details = DetailsOf(refused.status);
  EXPECT_EQ(details.info.reason(), "QUEUE_FULL");
  ASSERT_TRUE(details.has_retry);
  EXPECT_GT(details.retry.retry_delay().seconds() + details.retry.retry_delay().nanos(), 0);
  // One that waits is dropped by its caller without ever having run.
  waiting_context.TryCancel();
  EXPECT_EQ(waiting->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return server.server().queue().waiting() == 0; }));
  running_context.TryCancel();
  EXPECT_EQ(running->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AllGivenBack(server));
}

TEST(ServiceLimits, WhatNeverFitsIntoMemoryIsRefusedBeforeItRuns) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = int64_t{16} << 20;
  RunningServer server(config);
  v1::RolloutRequest request = BallRollout(10, 300000);
  request.mutable_spec()->add_record("y");
  const auto answer = Ask(server, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(answer.status).info.reason(), "OUT_OF_MEMORY");
  EXPECT_FALSE(DetailsOf(answer.status).has_retry);
  EXPECT_EQ(server.Series().at(R"(simgrad_queue_rejected_total{reason="too_large"})"), 1);
  EXPECT_EQ(server.server().queue().memory_used_bytes(), 0);
}

TEST(ServiceLimits, ACapThatNoLoopReachesIsNotAReasonToRefuse) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = int64_t{64} << 20;
  RunningServer server(config);
  v1::GradientRequest request = BallGradient(20, 512);
  (*request.mutable_spec()->mutable_world()->mutable_config())["max_iter"].set_number(100'000);
  const auto answer = Ask(server, request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = request.spec();
  EXPECT_TRUE(Ask(server, rollout).status.ok());
}

TEST(ServiceLimits, DrainingRefusesNewWorkAndLetsTheOldFinish) {
  RunningServer server;
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, EndlessRollout());
  AwaitFirstMessage(*reader);
  server.server().StopAdmission();
  const auto refused = Ask(server, BallRollout(3));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(refused.status).info.reason(), "DRAINING");
  EXPECT_EQ(server.Series().at("simgrad_ready"), 0);
  EXPECT_EQ(server.server().queue().running(), 1);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.server().Drain(absl::Seconds(60)));
}

TEST(ServiceLimits, WorkThatOutlivesTheDrainTimeoutIsCancelledAsUnavailable) {
  RunningServer server;
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, EndlessRollout());
  AwaitFirstMessage(*reader);
  auto drained =
      std::async(std::launch::async, [&] { return server.server().Drain(absl::ZeroDuration()); });
  for (v1::RolloutPart part; reader->Read(&part);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(drained.get());
}

// The same work over a narrow and a wide door.
template <class Request>
void ExpectSameAnswerInSmallMessages(const Request& request,
                                     const std::vector<std::string>& fields) {
  constexpr int64_t kNarrow = config::kSmallestMessageLimit;
  RunningServer wide;
  config::ServerConfig config = FreePorts();
  config.max_message_bytes = kNarrow;
  RunningServer narrow(config);
  const auto expected = Ask(wide, request);
  const auto answer = Ask(narrow, request);
  ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_GT(answer.parts.size(), expected.parts.size());
  for (const auto& part : answer.parts) {
    EXPECT_LE(static_cast<int64_t>(part.ByteSizeLong()), kNarrow);
  }
  EXPECT_EQ(answer.trajectory("y"), expected.trajectory("y"));
  EXPECT_EQ(answer.trajectory("penetration"), expected.trajectory("penetration"));
  const auto joined = [](const auto& blocks) {
    v1::DiagnosticsBlock whole;
    for (const auto& block : blocks) {
      for (int i = 0; i < block.terminations_size(); ++i) {
        if (whole.terminations_size() <= i) whole.add_terminations();
        whole.mutable_terminations(i)->MergeFrom(block.terminations(i));
      }
    }
    return whole.terminations(0).margin_ulps_size();
  };
  EXPECT_EQ(joined(answer.blocks()), joined(expected.blocks()));
  for (const std::string& field : fields) {
    EXPECT_FALSE(answer.pieces(field).empty()) << field;
    EXPECT_TRUE(expected.pieces(field).empty()) << field;
  }
}

// A world of many states, whose names no message of the smallest limit holds together.
v1::GradientRequest ManyNames() {
  sim::Builder b("many");
  sim::Vars states;
  for (int i = 0; i < 700; ++i)
    states.push_back(b.State(std::string(100, 'x') + std::to_string(i), {}));
  b.SetNext(states);
  b.AddObjective("first", nullptr,
                 [&](const sim::Vars& last, const sim::Vars&) { return last[0]; });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  v1::GradientRequest request;
  v1::RolloutSpec* const spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
  spec->set_steps(3);
  spec->set_instances(1);
  for (const sim::Input& input : program->inputs) {
    AddTensor(spec->mutable_initial(), input.name, {0.5}, {});
  }
  spec->set_objective("first");
  return request;
}

// Such a part ends the call with a status that says so; it is not taken for a caller that went away.
TEST(ServiceLimits, APartThatNoMessageHoldsIsTold) {
  config::ServerConfig config = FreePorts();
  config.max_message_bytes = config::kSmallestMessageLimit;
  RunningServer server(config);
  v1::GradientRequest gradient = ManyNames();
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = gradient.spec();
  for (const v1::DiagnosticsLevel level :
       {v1::DIAGNOSTICS_LEVEL_SUMMARY, v1::DIAGNOSTICS_LEVEL_OFF}) {
    rollout.mutable_spec()->mutable_diagnostics()->set_level(level);
    gradient.mutable_spec()->mutable_diagnostics()->set_level(level);
    for (const grpc::Status& status : {Ask(server, rollout).status, Ask(server, gradient).status}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
      const Details details = DetailsOf(status);
      EXPECT_EQ(details.info.reason(), "LIMIT_EXCEEDED");
      ASSERT_EQ(details.bad_request.field_violations_size(), 1);
      const std::string field = details.bad_request.field_violations(0).field();
      EXPECT_TRUE(field == "spec.world" || field == "spec.diagnostics") << field;
      EXPECT_NE(status.error_message().find("raise --max_message_bytes"), std::string::npos)
          << status.error_message();
    }
  }
  EXPECT_TRUE(AllGivenBack(server));
  for (const auto& [name, value] : server.Series()) {
    EXPECT_FALSE(name.rfind("simgrad_rpc_cancelled_total", 0) == 0 && value != 0) << name;
  }
  EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
}

TEST(ServiceLimits, ALargeRolloutReassemblesToTheSameBitsFromSmallMessages) {
  constexpr int64_t kInstances = 3000;
  v1::RolloutRequest request = BallRollout(40, 1);
  request.mutable_spec()->set_instances(kInstances);
  request.mutable_spec()->mutable_initial(0)->CopyFrom(request.spec().initial(1));
  request.mutable_spec()->mutable_initial(0)->set_name("y");
  request.mutable_spec()->set_objective("final_height");
  for (const char* name : {"y", "penetration"}) request.mutable_spec()->add_record(name);
  ExpectSameAnswerInSmallMessages(request, {"values", "path_signatures", "first_events.contact"});
}

TEST(ServiceLimits, PiecesHoldTheVeryBytesThatTheyReplace) {
  constexpr int64_t kInstances = 3000;
  v1::GradientRequest request = BallGradient(5, kInstances);
  config::ServerConfig config = FreePorts();
  config.max_message_bytes = config::kSmallestMessageLimit;
  RunningServer narrow(config);
  RunningServer wide;
  const auto expected = Ask(wide, request);
  const auto answer = Ask(narrow, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const auto content = [&](const std::string& field, const std::string& inline_bytes) {
    return inline_bytes.empty() ? answer.pieces(field) : inline_bytes;
  };
  const v1::GradientResult& got = answer.result();
  const v1::GradientResult& want = expected.result();
  EXPECT_EQ(content("values", got.rollout().values()), want.rollout().values());
  EXPECT_EQ(content("path_signatures", got.rollout().path_signatures()),
            want.rollout().path_signatures());
  EXPECT_EQ(content("final_state.y", got.rollout().final_state(0).tensor().inline_()),
            want.rollout().final_state(0).tensor().inline_());
  EXPECT_EQ(content("gradient.state.y", got.gradients(0).gradient().inline_()),
            want.gradients(0).gradient().inline_());
  EXPECT_EQ(got.gradients(0).gradient().shape(0), kInstances);
}

TEST(ServiceLimits, AReaderOfTheLogThatStallsDoesNotStallTheService) {
  RunningServer server;
  service::FlushLog(absl::Seconds(60));
  // Nobody reads the pipe that stderr is for a while: it fills up with lines of requests.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  constexpr int kRequests = 1500;  // of at least 100 bytes each, and a pipe holds 64 KiB
  int served = 0;
  for (int i = 0; i < kRequests; ++i) {
    grpc::ClientContext context;
    v1::ServerInfo info;
    served += server.stub().GetServerInfo(&context, {}, &info).ok() ? 1 : 0;
  }
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
  // The reader is back: the writer that waits for it goes on.
  char buffer[4096];
  while (read(ends[0], buffer, sizeof(buffer)) > 0) {
  }
  close(ends[0]);
  EXPECT_EQ(served, kRequests);
}

TEST(ServiceLimits, PerStepControlsLargerThanAnAnswersMessagesAreTaken) {
  constexpr int64_t kInstances = 4096;
  constexpr int64_t kSteps = 200;
  RunningServer server;
  v1::GradientRequest request = BallGradient(kSteps, kInstances);
  std::vector<double> u(kInstances * kSteps);
  for (size_t i = 0; i < u.size(); ++i) u[i] = static_cast<double>(i % 17) / 16;
  AddTensor(request.mutable_spec()->mutable_controls(), "u", u, {kInstances, kSteps, 1});
  request.mutable_spec()->mutable_controls(0)->set_per_step(true);
  ASSERT_GT(static_cast<int64_t>(request.ByteSizeLong()), config::ServerConfig().max_message_bytes);
  const auto answer = Ask(server, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  // The gradient has the shape of what was sent, in f32, cut into messages of an answer.
  EXPECT_EQ(answer.pieces("gradient.control.u").size(), 4u * kInstances * kSteps);
}

TEST(ServiceLimits, ARequestAboveItsLimitIsRefusedWhateverTheAnswersLimit) {
  config::ServerConfig config = FreePorts();
  config.max_request_bytes = config::kSmallestMessageLimit;
  RunningServer server(config);
  EXPECT_EQ(Ask(server, BallRollout(3, 20000)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Ask(server, BallRollout(3, 20)).status.ok());
}

}  // namespace
}  // namespace simgrad::server
