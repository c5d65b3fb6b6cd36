// Small work beside large work, readers that stall, callers with limits: who gets the workers.
#include <grpcpp/generic/generic_stub.h>
#include <unistd.h>

#include <fstream>

#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using scheduling::Lane;

config::ServerConfig OneWorker() {
  config::ServerConfig config = FreePorts();
  config.workers = 1;
  return config;
}

// Large work that ends: some ten million element-operations, every loop at its cap.
v1::RolloutRequest LargeRollout(v1::DiagnosticsLevel level, int64_t steps) {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("boundary_projection");
  auto& config = *spec->mutable_world()->mutable_config();
  config["elements"].set_number(8);
  config["max_iter"].set_number(400);
  config["scope"].set_word("element");
  spec->set_steps(steps);
  AddTensor(spec->mutable_initial(), "y", std::vector<double>(8, -0.1), {8});
  AddTensor(spec->mutable_params(), "k", {0.0}, {});
  spec->mutable_diagnostics()->set_level(level);
  return request;
}

TEST(Lanes, SmallWorkRunsBesideLargeWorkThatHasEveryWorker) {
  RunningServer server(OneWorker());
  grpc::ClientContext running_context, waiting_context;
  auto running = server.Rollout(&running_context, EndlessRollout());
  auto waiting = server.Rollout(&waiting_context, EndlessRollout());
  const auto& large = server.server().queue().lane(Lane::kLarge);
  ASSERT_TRUE(Eventually([&] { return large.busy() == 1 && large.waiting() == 1; }));
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
    EXPECT_TRUE(Ask(server, BallGradient(50, 20)).status.ok());  // not run by gRPC's threads
  }
  EXPECT_EQ(large.busy(), 1);
  EXPECT_EQ(large.waiting(), 1);
  for (grpc::ClientContext* context : {&running_context, &waiting_context}) context->TryCancel();
  running->Finish();
  waiting->Finish();
}

TEST(SlowReaders, LeaveEveryWorkerToOtherLargeWork) {
  config::ServerConfig config = OneWorker();
  config.max_message_bytes = config::kSmallestMessageLimit;
  config.slow_reader_timeout = absl::InfiniteDuration();
  RunningServer server(config);
  const auto& large = server.server().queue().lane(Lane::kLarge);
  // Each has far more to say than may wait for its reader, which takes one message and stops.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<PartReader<v1::RolloutResponse>>> readers;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(
        server.Rollout(contexts.back().get(), LargeRollout(v1::DIAGNOSTICS_LEVEL_INSTANCES, 4000)));
    v1::RolloutPart part;
    ASSERT_TRUE(readers.back()->Read(&part));
  }
  EXPECT_TRUE(Eventually([&] { return large.running() == 3 && large.busy() == 0; }));
  EXPECT_TRUE(Ask(server, LargeRollout(v1::DIAGNOSTICS_LEVEL_OFF, 1000)).status.ok());
  // Those that stalled go on as soon as they are read, to the end.
  bool has_result = false;
  for (v1::RolloutPart part; readers[0]->Read(&part);) has_result = has_result || part.has_result();
  EXPECT_TRUE(has_result);
  EXPECT_TRUE(readers[0]->Finish().ok());
  for (auto& context : contexts) context->TryCancel();
  for (size_t i = 1; i < readers.size(); ++i) readers[i]->Finish();
}

TEST(SlowReaders, ThatTakeTooLittleAreGivenUpHoweverOftenTheyTakeSomething) {
  config::ServerConfig config = OneWorker();
  config.max_message_bytes = config::kSmallestMessageLimit;
  config.slow_reader_timeout = absl::Milliseconds(200);
  config.min_read_bytes_per_second = int64_t{1} << 40;  // more than anyone takes
  RunningServer server(config);
  grpc::ClientContext context;
  auto reader = server.Rollout(&context, LargeRollout(v1::DIAGNOSTICS_LEVEL_INSTANCES, 4000));
  // Reads all the time, and is not fast enough.
  for (v1::RolloutPart part; reader->Read(&part);) EXPECT_FALSE(part.has_result());
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(Eventually([&] {
    return server.server().queue().running() == 0 &&
           server.server().queue().memory_used_bytes() == 0;
  }));
}

// Bytes that are no message, sent as one.
grpc::Status SendGarbage(RunningServer& server) {
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice garbage(std::string("\xff\xff\xff\xff"));
  const grpc::ByteBuffer request(&garbage, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/simgrad.v1.Simgrad/Rollout", request, &queue);
  grpc::ByteBuffer response;
  grpc::Status status;
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

TEST(Overload, IsToldBeforeTheRequestIsRead) {
  config::ServerConfig config = OneWorker();
  config.queue_capacity = 1;
  RunningServer server(config);
  EXPECT_EQ(SendGarbage(server).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // One runs, one waits in the lane, and one that is no rollout holds the last place.
  grpc::ClientContext running_context, waiting_context;
  auto running = server.Rollout(&running_context, EndlessRollout());
  const auto& queue = server.server().queue();
  ASSERT_TRUE(Eventually(
      [&] { return queue.lane(Lane::kLarge).busy() == 1 && queue.arrived_waiting() == 0; }));
  auto waiting = server.Rollout(&waiting_context, EndlessRollout());
  ASSERT_TRUE(Eventually(
      [&] { return queue.lane(Lane::kLarge).waiting() == 1 && queue.arrived_waiting() == 1; }));
  auto& scheduler = const_cast<scheduling::Scheduler&>(queue);
  const auto other = scheduler.callers().Find("other");
  auto place = scheduler.Arrive(other, absl::InfiniteFuture());
  ASSERT_TRUE(std::holds_alternative<scheduling::Scheduler::Arrival>(place));
  const grpc::Status status = SendGarbage(server);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).info.reason(), "QUEUE_FULL");
  EXPECT_TRUE(DetailsOf(status).has_retry);
  for (grpc::ClientContext* context : {&running_context, &waiting_context}) context->TryCancel();
  running->Finish();
  waiting->Finish();
}

// ---- Callers ----

class CallersTest : public testing::Test {
 protected:
  CallersTest() {
    std::ofstream(path_) << "few-token name=few requests=1\n"
                         << "slow-token name=slow instance_steps_per_second=100\n"
                         << "small-token name=small memory_bytes=8388608\n"
                         << "nameless-token\n";
    config_.token_file = path_;
  }
  ~CallersTest() override { unlink(path_.c_str()); }

  static void Authorize(grpc::ClientContext& context, const std::string& token) {
    context.AddMetadata("authorization", "Bearer " + token);
  }
  static Answer<v1::RolloutPart> AskAs(RunningServer& server, const std::string& token,
                                       const v1::RolloutRequest& request) {
    Answer<v1::RolloutPart> answer;
    grpc::ClientContext context;
    Authorize(context, token);
    auto reader = server.Rollout(&context, request);
    for (v1::RolloutPart part; reader->Read(&part);) answer.parts.push_back(part);
    answer.status = reader->Finish();
    return answer;
  }
  static void ExpectLimit(const grpc::Status& status, bool has_retry) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).info.reason(), "CALLER_LIMIT");
    EXPECT_EQ(DetailsOf(status).has_retry, has_retry);
  }
  static double Of(RunningServer& server, const std::string& family, const std::string& labels) {
    return server.Series().at("simgrad_caller_" + family + "{" + labels + "}");
  }

  const std::string path_ = testing::TempDir() + "/callers_" + std::to_string(getpid());
  config::ServerConfig config_ = FreePorts();
};

TEST_F(CallersTest, HaveAsManyRequestsInFlightAsTheFileSays) {
  RunningServer server(config_);
  grpc::ClientContext context;
  Authorize(context, "few-token");
  auto running = server.Rollout(&context, EndlessRollout());
  ASSERT_TRUE(Eventually([&] { return server.server().queue().running() == 1; }));
  ExpectLimit(AskAs(server, "few-token", BallRollout(3)).status, true);
  EXPECT_TRUE(AskAs(server, "nameless-token", BallRollout(3)).status.ok());
  context.TryCancel();
  running->Finish();
  EXPECT_TRUE(Eventually([&] { return AskAs(server, "few-token", BallRollout(3)).status.ok(); }));
  EXPECT_GE(Of(server, "rejected_total", R"(caller="few",reason="requests")"), 1);
  EXPECT_GE(Of(server, "requests_total", R"(caller="few")"), 3);
  EXPECT_EQ(Of(server, "requests_total", R"(caller="other")"), 1);
}

TEST_F(CallersTest, HaveAsManyInstanceStepsPerSecondAsTheFileSays) {
  RunningServer server(config_);
  EXPECT_TRUE(AskAs(server, "slow-token", BallRollout(1000, 100)).status.ok());
  ExpectLimit(AskAs(server, "slow-token", BallRollout(3)).status, true);
  EXPECT_TRUE(AskAs(server, "nameless-token", BallRollout(3)).status.ok());
  EXPECT_EQ(Of(server, "rejected_total", R"(caller="slow",reason="rate")"), 1);
  EXPECT_EQ(Of(server, "instance_steps_total", R"(caller="slow")"), 100'000);
}

TEST_F(CallersTest, HaveAsMuchMemoryAsTheFileSays) {
  RunningServer server(config_);
  EXPECT_TRUE(AskAs(server, "small-token", BallRollout(3)).status.ok());
  ExpectLimit(AskAs(server, "small-token", BallRollout(3, 50'000)).status, false);
  EXPECT_EQ(Of(server, "rejected_total", R"(caller="small",reason="share")"), 1);
}

// ---- One budget ----

TEST(Memory, OfCachedProgramsIsCountedAndGivenUpToWork) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = int64_t{64} << 20;
  RunningServer server(config);
  for (int elements = 1; elements < 20; ++elements) {
    v1::RolloutRequest request = BallRollout(1);
    (*request.mutable_spec()->mutable_world()->mutable_config())["max_iter"].set_number(elements);
    EXPECT_TRUE(Ask(server, request).status.ok());
  }
  ASSERT_TRUE(Eventually([&] { return server.server().queue().memory_used_bytes() == 0; }));
  auto series = server.Series();
  EXPECT_EQ(series.at(R"(simgrad_cache_entries{cache="programs"})"), 19);
  const double cached = series.at(R"(simgrad_cache_bytes{cache="programs"})") +
                        series.at(R"(simgrad_cache_bytes{cache="worlds"})");
  EXPECT_GT(cached, 19 * 1000);
  EXPECT_LE(cached, static_cast<double>(config.memory_limit_bytes) / 16);
  EXPECT_EQ(series.at(R"(simgrad_memory_reserved_bytes{use="cache"})"), cached);
  EXPECT_EQ(series.at(R"(simgrad_memory_reserved_bytes{use="work"})"), 0);
  // Work that needs all there is gets it.
  auto& scheduler = const_cast<scheduling::Scheduler&>(server.server().queue());
  {
    const auto all = scheduler.Reserve(config.memory_limit_bytes, scheduling::MemoryUse::kWork,
                                       scheduler.callers().Find("greedy"));
    EXPECT_TRUE(std::holds_alternative<scheduling::MemoryBudget::Reservation>(all));
    EXPECT_EQ(server.Series().at(R"(simgrad_cache_entries{cache="programs"})"), 0);
  }
  EXPECT_TRUE(Ask(server, BallRollout(1)).status.ok());
}

}  // namespace
}  // namespace simgrad::server
