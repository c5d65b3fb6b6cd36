// Answers that nobody reads: what waits is bounded, the work waits with it, and nothing is lost.
#include <chrono>
#include <thread>

#include "tests/server/running_server.h"
#include "tests/server/silent_peer.h"

namespace simgrad::server {
namespace {

// Few steps, and an answer of 100 MB: every test of loops that never converge is returned.
constexpr int64_t kSteps = 4000;
constexpr int64_t kElements = 8;
constexpr int64_t kTests = 400;  // of each run of a loop: its cap
constexpr int64_t kValueBytes = 8 * kTests * kElements;

v1::RolloutRequest Stubborn(int64_t steps, int64_t elements, int64_t max_iter) {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("boundary_projection");
  auto& config = *spec->mutable_world()->mutable_config();
  config["elements"].set_number(static_cast<double>(elements));
  config["max_iter"].set_number(static_cast<double>(max_iter));
  config["scope"].set_word("element");
  spec->set_steps(steps);
  const auto count = static_cast<size_t>(elements);
  AddTensor(spec->mutable_initial(), "y", std::vector<double>(count, -0.1), {elements});
  AddTensor(spec->mutable_params(), "k", {0.0}, {});
  return request;
}

v1::RolloutRequest LargeAnswer() {
  v1::RolloutRequest request = Stubborn(kSteps, kElements, kTests);
  request.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_INSTANCES);
  return request;
}

config::ServerConfig SmallServer() {
  config::ServerConfig config = FreePorts();
  config.max_message_bytes = config::kSmallestMessageLimit;
  config.memory_limit_bytes = int64_t{16} << 20;  // a sixth of the answer
  return config;
}

double StepsDone(RunningServer& server) {
  return server.Series().at("simgrad_steps_total{direction=\"forward\"}");
}

// Until the work has come as far as it comes: it waits for its reader, before and after others had
// their answers, several times over. Other requests are the clock; what the reader's library has not taken off its
// socket yet, on a busy machine, lets the work go on once more.
void AwaitStandstill(RunningServer& server) {
  const auto& queue = server.server().queue();
  const auto waits = [&] {
    return queue.running() == 1 && queue.lane(scheduling::Lane::kLarge).busy() == 0;
  };
  constexpr int kTimes = 4;
  for (int stood = 0; stood < kTimes;) {
    ASSERT_TRUE(Eventually(waits));
    const double before = StepsDone(server);
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(Ask(server, BallRollout(0)).status.ok());
    stood = waits() && StepsDone(server) == before ? stood + 1 : 0;
  }
}

TEST(SlowReader, WorkWaitsForItAndItsAnswerIsComplete) {
  RunningServer server(SmallServer());
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, LargeAnswer());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  AwaitStandstill(server);
  EXPECT_EQ(server.server().queue().running(), 1);
  EXPECT_LT(StepsDone(server), kSteps / 2);
  int64_t next = 0;
  int64_t bytes = 0;
  bool result = false;
  do {
    result = result || part.has_result();
    for (const v1::InstanceColumns& columns : part.diagnostics().instances()) {
      EXPECT_EQ(part.diagnostics().first_step(), next);
      next += part.diagnostics().steps();
      bytes += static_cast<int64_t>(columns.values().size());
    }
  } while (reader->Read(&part));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(result);
  EXPECT_EQ(next, kSteps);
  EXPECT_EQ(bytes, kSteps * kValueBytes);
  EXPECT_TRUE(AllGivenBack(server));
}

TEST(SlowReader, ThatCancelsGivesWorkerAndMemoryBack) {
  RunningServer server(SmallServer());
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, LargeAnswer());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  AwaitStandstill(server);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Eventually([&] {
    return server.Series().at(
               "simgrad_rpc_cancelled_total{grpc_method=\"Rollout\",phase=\"stream\"}") == 1;
  }));
  EXPECT_EQ(server.Series().at("simgrad_rollouts_total{mode=\"rollout\","
                               "outcome=\"cancelled\",world=\"boundary_projection\"}"),
            1);
}

// All was computed, and most of it waits to be read.
void ExpectLostInStream(bool expires, const std::string& lost, const std::string& outcome,
                        const std::string& code) {
  RunningServer server;
  v1::RolloutRequest request = Stubborn(400, kElements, kTests);
  request.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_INSTANCES);
  grpc::ClientContext context;
  if (expires) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  }
  auto reader = server.Rollout(&context, request);
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  const auto& queue = server.server().queue();
  ASSERT_TRUE(Eventually([&] { return StepsDone(server) == 400 && queue.running() == 0; }));
  if (!expires) context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(Eventually([&] {
    return server.Series().at("simgrad_" + lost + "{grpc_method=\"Rollout\",phase=\"stream\"}") ==
           1;
  }));
  const auto series = server.Series();
  const auto ended = [&](const std::string& how) {
    return series.at("simgrad_rollouts_total{mode=\"rollout\",outcome=\"" + how +
                     "\",world=\"boundary_projection\"}");
  };
  EXPECT_EQ(ended(outcome), 1);
  EXPECT_EQ(ended("ok"), 0);
  EXPECT_TRUE(Eventually([&] {
    return server.Series().at("grpc_server_handled_total{grpc_code=\"" + code +
                              "\",grpc_method=\"Rollout\",grpc_service=\"simgrad.v1.Simgrad\","
                              "grpc_type=\"server_stream\"}") == 1;
  }));
}

TEST(SlowReader, ThatLeavesAFinishedAnswerIsNoSuccess) {
  ExpectLostInStream(false, "rpc_cancelled_total", "cancelled", "Canceled");
}

TEST(SlowReader, ThatLetsAFinishedAnswerExpireIsNoSuccess) {
  ExpectLostInStream(true, "rpc_deadline_exceeded_total", "expired", "DeadlineExceeded");
}

TEST(SlowReader, IsCutOffByItsDeadline) {
  RunningServer server(SmallServer());
  const auto& queue = server.server().queue();
  // Where others use the machine the first step may come after a short deadline.
  for (std::chrono::milliseconds timeout(500); StepsDone(server) == 0; timeout *= 2) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    auto reader = server.Rollout(&context, LargeAnswer());
    EXPECT_TRUE(Eventually([&] {
      return std::chrono::system_clock::now() > context.deadline() &&
             queue.memory_used_bytes() == 0 && queue.running() == 0;
    }));
    for (v1::RolloutPart part; reader->Read(&part);) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_LT(StepsDone(server), kSteps);
}

TEST(SlowReader, IsCutOffAtTheEndOfADrain) {
  RunningServer server(SmallServer());
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, LargeAnswer());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  AwaitStandstill(server);
  EXPECT_FALSE(server.server().Drain(absl::Milliseconds(50)));
  EXPECT_EQ(server.server().queue().running(), 0);
  while (reader->Read(&part)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// gRPC ends no call before the write that it has begun, however long that takes.
TEST(SlowReader, ThatLeavesAllInItsSocketDoesNotHoldUpTheServersEnd) {
  auto server = std::make_unique<RunningServer>(SmallServer());
  // Keeps gRPC's library in use: its own end waits for its pollers, 10 s at most.
  const std::shared_ptr<grpc::Channel> channel = server->channel();
  const SilentPeer peer(server->server().port(), "/simgrad.v1.Simgrad/Rollout",
                        LargeAnswer().SerializeAsString());
  ASSERT_TRUE(Eventually([&] { return StepsDone(*server) > 0; }));
  AwaitStandstill(*server);
  const absl::Time begin = absl::Now();
  server.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

config::ServerConfig Impatient(absl::Duration timeout) {
  config::ServerConfig config = SmallServer();
  config.workers = 1;
  config.slow_reader_timeout = timeout;
  config.min_read_bytes_per_second = int64_t{1} << 20;  // a message in less than the timeout
  return config;
}

// For a server that would wait for ever.
std::chrono::system_clock::time_point FarOff() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

const char* const kSlowClient = "simgrad_stream_dropped_messages_total{reason=\"slow_client\"}";
const char* const kGivenUp = "simgrad_queue_rejected_total{reason=\"slow_reader\"}";
const char* const kExhausted =
    "grpc_server_handled_total{grpc_code=\"ResourceExhausted\",grpc_method=\"Rollout\","
    "grpc_service=\"simgrad.v1.Simgrad\",grpc_type=\"server_stream\"}";

TEST(SlowReader, ThatTakesNothingForLongGivesTheOnlyWorkerAndItsMemoryBack) {
  RunningServer server(Impatient(absl::Milliseconds(100)));
  grpc::ClientContext context;
  context.set_deadline(FarOff());
  auto reader = server.Rollout(&context, LargeAnswer());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());  // which had to wait for the worker
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_TRUE(Eventually([&] { return server.Series().at(kExhausted) == 1; }));
  EXPECT_GE(server.Series().at(kSlowClient), 1);
  EXPECT_EQ(server.Series().at(kGivenUp), 1);
  EXPECT_LT(StepsDone(server), kSteps);
  while (reader->Read(&part)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(SlowReader, ThatLeavesAllInItsSocketIsGivenUpToo) {
  // Given up while the kernel still takes something, the call would end and leave the connection: on
  // a busy machine the server itself may write nothing for a while.
  RunningServer server(Impatient(absl::Seconds(1)));
  const SilentPeer peer(server.server().port(), "/simgrad.v1.Simgrad/Rollout",
                        LargeAnswer().SerializeAsString());
  EXPECT_TRUE(Eventually([&] { return server.Series().at(kExhausted) == 1; }));
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_LT(StepsDone(server), kSteps);
  // The connection goes too: the kernel holds what was to be read.
  EXPECT_TRUE(Eventually([&] { return server.Series().at("simgrad_connections") == 0; }));
}

TEST(SlowReader, ThatComesBackSoonIsToldWhyItsCallFailed) {
  // From when the worker is free to the reader's next word may be as long as this.
  RunningServer server(Impatient(absl::Seconds(3)));
  grpc::ClientContext context;
  context.set_deadline(FarOff());
  auto reader = server.Rollout(&context, LargeAnswer());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_TRUE(Eventually([&] { return server.server().queue().running() == 0; }));
  while (reader->Read(&part)) EXPECT_FALSE(part.has_result());
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "SLOW_READER");
  EXPECT_FALSE(DetailsOf(status).has_retry);
}

TEST(SlowReader, OfAnAnswerThatIsDoneGivesItsMemoryBackToo) {
  config::ServerConfig config = FreePorts();
  config.slow_reader_timeout = absl::Seconds(2);  // far longer than the work takes
  config.min_read_bytes_per_second = int64_t{4} << 20;
  RunningServer server(config);
  v1::RolloutRequest request = LargeAnswer();
  request.mutable_spec()->set_steps(200);  // 5 MB: more than HTTP/2 sends unasked, less than waits
  grpc::ClientContext context;
  context.set_deadline(FarOff());
  auto reader = server.Rollout(&context, request);
  EXPECT_TRUE(Eventually([&] { return server.Series().at(kExhausted) == 1; }));
  EXPECT_TRUE(AllGivenBack(server));
  EXPECT_EQ(server.Series().at(kGivenUp), 1);
  EXPECT_EQ(StepsDone(server), 200);
}

// Nothing tells how much of a message is taken before all of it is.
TEST(SlowReader, MayTakeALargeMessageForAsLongAsTheLeastRateAllows) {
  config::ServerConfig config = FreePorts();
  config.slow_reader_timeout = absl::Milliseconds(100);
  RunningServer server(config);
  v1::RolloutRequest request = LargeAnswer();
  request.mutable_spec()->set_steps(200);  // 5 MB
  grpc::ClientContext context;
  context.set_deadline(FarOff());
  auto reader = server.Rollout(&context, request);
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  bool has_result = false;
  while (reader->Read(&part)) has_result = has_result || part.has_result();
  EXPECT_TRUE(has_result);
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server.Series().at(kGivenUp), 0);
}

TEST(FewSteps, ThatTakeLongAreToldOfBeforeTheirEnd) {
  RunningServer server;
  grpc::ClientContext context;
  // Each step tests a million times: all of them take minutes.
  auto reader = server.Rollout(&context, Stubborn(kSteps, 1000, 1000));
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_TRUE(part.has_header());
  EXPECT_LT(StepsDone(server), kSteps);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace simgrad::server
