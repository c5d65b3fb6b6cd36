// Small work beside large work, readers that stall, callers with limits: who gets the workers.
#include <grpcpp/generic/generic_stub.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/conversion/program_to_proto.h"
#include "server/service/request_log.h"
#include "sim/program/builder.h"
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

// More than may wait without a worker: the one that waits longest is given up for each.
TEST(SlowReaders, StopNobodyHoweverManyTheyAre) {
  const int most = scheduling::QueueOptions().most_paused;
  config::ServerConfig config = OneWorker();
  config.max_message_bytes = config::kSmallestMessageLimit;
  config.slow_reader_timeout = absl::InfiniteDuration();
  config.memory_limit_bytes = int64_t{64} << 30;
  RunningServer server(config);
  const auto& large = server.server().queue().lane(Lane::kLarge);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<PartReader<v1::RolloutResponse>>> readers;
  for (int i = 0; i < most + 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(
        server.Rollout(contexts.back().get(), LargeRollout(v1::DIAGNOSTICS_LEVEL_INSTANCES, 4000)));
    v1::RolloutPart part;
    ASSERT_TRUE(readers.back()->Read(&part));
  }
  EXPECT_TRUE(Eventually([&] { return large.running() == most && large.busy() == 0; }));
  EXPECT_TRUE(Ask(server, LargeRollout(v1::DIAGNOSTICS_LEVEL_OFF, 1000)).status.ok());
  // Two were given up, most often the first; which ones depends on when gRPC took what. The others go
  // on where they are read, to the end; reading all of them takes minutes.
  constexpr size_t kRead = 4;
  int given_up = 0;
  for (size_t i = 0; i < readers.size(); ++i) {
    if (i >= kRead) {
      contexts[i]->TryCancel();
      readers[i]->Finish();
      continue;
    }
    bool has_result = false;
    for (v1::RolloutPart part; readers[i]->Read(&part);)
      has_result = has_result || part.has_result();
    const grpc::Status status = readers[i]->Finish();
    EXPECT_EQ(status.ok(), has_result) << status.error_message();
    if (status.ok()) continue;
    EXPECT_EQ(DetailsOf(status).info.reason(), "SLOW_READER");
    ++given_up;
  }
  EXPECT_LE(given_up, 2);
}

TEST(SlowReaders, ThatTakeTooLittleAreGivenUpHoweverOftenTheyTakeSomething) {
  config::ServerConfig config = OneWorker();
  config.max_message_bytes = config::kSmallestMessageLimit;
  config.slow_reader_timeout = absl::Milliseconds(200);
  config.min_read_bytes_per_second = int64_t{1} << 40;  // more than anyone takes
  RunningServer server(config);
  grpc::ClientContext context;
  // Ten times the timeout.
  auto reader = server.Rollout(&context, LargeRollout(v1::DIAGNOSTICS_LEVEL_INSTANCES, 40'000));
  // Reads all the time, and is not fast enough.
  for (v1::RolloutPart part; reader->Read(&part);) EXPECT_FALSE(part.has_result());
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(Eventually([&] {
    return server.server().queue().running() == 0 &&
           server.server().queue().memory_used_bytes() == 0;
  }));
}

// Rollouts that are open at once; what they send is no message.
class Rollouts {
 public:
  explicit Rollouts(RunningServer& server) : stub_(server.channel()) {}
  ~Rollouts() {
    Cancel();
    Await();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) continue;
  }

  void Start(int count, std::chrono::milliseconds timeout = std::chrono::hours(1)) {
    const grpc::Slice garbage(std::string("\xff\xff\xff\xff"));
    const grpc::ByteBuffer request(&garbage, 1);
    for (int i = 0; i < count; ++i) {
      Call& call = *calls_.emplace_back(std::make_unique<Call>());
      call.context.set_deadline(std::chrono::system_clock::now() + timeout);
      call.reader =
          stub_.PrepareUnaryCall(&call.context, "/simgrad.v1.Simgrad/Rollout", request, &queue_);
      call.reader->StartCall();
      call.reader->Finish(&call.response, &call.status, nullptr);
    }
  }
  void Cancel() {
    for (const auto& call : calls_) call->context.TryCancel();
  }
  // How all of them ended.
  std::vector<grpc::Status> Await() {
    void* tag = nullptr;
    bool ok = false;
    for (; ended_ < calls_.size(); ++ended_) queue_.Next(&tag, &ok);
    std::vector<grpc::Status> statuses;
    for (const auto& call : calls_) statuses.push_back(call->status);
    return statuses;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
  size_t ended_ = 0;
};

grpc::Status SendGarbage(RunningServer& server) {
  Rollouts one(server);
  one.Start(1);
  return one.Await().front();
}

// A server whose queue is full: one request runs, one waits in the lane, and one that is no rollout
// holds the last place.
class Overload : public testing::Test {
 protected:
  Overload() : server_(OfCapacityOne()) {
    running_ = server_.Rollout(&running_context_, EndlessRollout());
    const auto& queue = server_.server().queue();
    EXPECT_TRUE(Eventually(
        [&] { return queue.lane(Lane::kLarge).busy() == 1 && queue.arrived_waiting() == 0; }));
    waiting_ = server_.Rollout(&waiting_context_, EndlessRollout());
    EXPECT_TRUE(Eventually(
        [&] { return queue.lane(Lane::kLarge).waiting() == 1 && queue.arrived_waiting() == 1; }));
    auto& scheduler = const_cast<scheduling::Scheduler&>(queue);
    place_ = scheduler.Arrive(scheduler.callers().Find("other"), absl::InfiniteFuture());
    EXPECT_TRUE(std::holds_alternative<scheduling::Scheduler::Arrival>(place_));
  }
  ~Overload() override {
    place_ = scheduling::Refusal();
    for (grpc::ClientContext* context : {&running_context_, &waiting_context_}) {
      context->TryCancel();
    }
    running_->Finish();
    waiting_->Finish();
  }
  static config::ServerConfig OfCapacityOne() {
    config::ServerConfig config = OneWorker();
    config.queue_capacity = 1;
    return config;
  }
  static void ExpectQueueFull(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).info.reason(), "QUEUE_FULL");
    EXPECT_TRUE(DetailsOf(status).has_retry);
  }
  static bool IsQueueFull(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
           DetailsOf(status).info.reason() == "QUEUE_FULL";
  }
  double Rejected() { return server_.Series().at("simgrad_queue_rejected_total{reason=\"full\"}"); }
  const std::string kInFlight = R"(simgrad_rpc_in_flight{grpc_method="Rollout"})";
  double InFlight() { return server_.Series().at(kInFlight); }
  // Of these the first 64 are told at once, and most of the others are held for up to three seconds.
  static constexpr int kMany = 600;

  RunningServer server_;
  grpc::ClientContext running_context_, waiting_context_;
  std::unique_ptr<PartReader<v1::RolloutResponse>> running_, waiting_;
  std::variant<scheduling::Scheduler::Arrival, scheduling::Refusal> place_;
};

TEST_F(Overload, IsToldBeforeTheRequestIsRead) {
  ExpectQueueFull(SendGarbage(server_));
  place_ = scheduling::Refusal();
  EXPECT_EQ(SendGarbage(server_).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Overload, IsToldBeforeTheRequestHasCome) {
  // A call that never sends its request.
  grpc::GenericStub stub(server_.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/simgrad.v1.Simgrad/Gradient", &queue);
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ExpectQueueFull(status);
  EXPECT_EQ(Rejected(), 1);
}

// At the pace of PaceRefusal: 64 at once, then one each 16 ms.
TEST_F(Overload, IsToldAtAPaceToACallerThatComesAgainAtOnce) {
  constexpr int kAtOnce = 64, kMore = 40;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < kAtOnce + kMore; ++i) ExpectQueueFull(SendGarbage(server_));
  EXPECT_GE(absl::Now() - begin, kMore * absl::Milliseconds(16));
  EXPECT_EQ(Rejected(), kAtOnce + kMore);
  // What was held is gone, and a place is a place.
  place_ = scheduling::Refusal();
  EXPECT_EQ(SendGarbage(server_).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return InFlight() == 2; }));
}

TEST_F(Overload, IsNotToldToACallerThatHasLeft) {
  const std::string kCancelled =
      R"(grpc_server_handled_total{grpc_code="Canceled",grpc_method="Rollout",)"
      R"(grpc_service="simgrad.v1.Simgrad",grpc_type="server_stream"})";
  // Whether the call of the one that leaves ends before calls that came, and are due, before it.
  const auto ends_at_once = [&] {
    const double before = Rejected();
    const double cancelled = server_.Series()[kCancelled];
    Rollouts many(server_), last(server_);
    many.Start(kMany);
    EXPECT_TRUE(Eventually([&] { return Rejected() == before + kMany; }));
    last.Start(1);
    EXPECT_TRUE(Eventually([&] { return Rejected() == before + kMany + 1; }));
    last.Cancel();
    last.Await();
    bool ended = false, others_wait = true;
    while (!ended && others_wait) {
      std::map<std::string, double> series = server_.Series();
      ended = series[kCancelled] == cancelled + 1;
      others_wait = series[kInFlight] > (ended ? 2 : 3);
    }
    for (const grpc::Status& other : many.Await()) ExpectQueueFull(other);
    return ended && others_wait;
  };
  EXPECT_TRUE(Eventually(ends_at_once));
  EXPECT_TRUE(Eventually([&] { return InFlight() == 2; }));
}

TEST_F(Overload, IsToldToManyThatLeaveAtAnyTime) {
  // Fewer than a peer may cancel before it is cut off.
  constexpr int kRounds = 10, kEach = 45;
  for (int round = 0; round < kRounds; ++round) {
    Rollouts many(server_);
    many.Start(kEach);
    if (round % 2 == 0) SendGarbage(server_);
    many.Cancel();
    for (const grpc::Status& status : many.Await()) {
      EXPECT_TRUE(IsQueueFull(status) || status.error_code() == grpc::StatusCode::CANCELLED)
          << status.error_message();
    }
  }
  EXPECT_TRUE(Eventually([&] { return InFlight() == 2; }));
  EXPECT_TRUE(IsQueueFull(SendGarbage(server_)));
}

TEST_F(Overload, IsToldBeforeTheCallersTimeIsOver) {
  const auto is_told = [&] {
    const double before = Rejected();
    Rollouts many(server_), hurried(server_);
    many.Start(kMany);
    EXPECT_TRUE(Eventually([&] { return Rejected() == before + kMany; }));
    hurried.Start(1, std::chrono::milliseconds(900));  // its turn comes later
    return IsQueueFull(hurried.Await().front());
  };
  EXPECT_TRUE(Eventually(is_told));
}

TEST_F(Overload, IsToldToAllThatAreHeldWhenTheServerDrains) {
  Rollouts many(server_);
  many.Start(kMany);
  ASSERT_TRUE(Eventually([&] { return Rejected() == kMany; }));
  EXPECT_FALSE(server_.server().Drain(absl::ZeroDuration()));  // the endless work is cut
  for (const grpc::Status& status : many.Await()) ExpectQueueFull(status);
}

TEST_F(Overload, EndsWithTheServerWhateverIsHeld) {
  auto running = std::make_unique<RunningServer>(OfCapacityOne());
  auto& scheduler = const_cast<scheduling::Scheduler&>(running->server().queue());
  auto places = std::vector<decltype(place_)>();
  for (int i = 0; i < 2; ++i) {
    places.push_back(scheduler.Arrive(scheduler.callers().Find("other"), absl::InfiniteFuture()));
  }
  Rollouts many(*running);
  many.Start(kMany);
  ASSERT_TRUE(Eventually([&] {
    return running->Series().at("simgrad_queue_rejected_total{reason=\"full\"}") == kMany;
  }));
  places.clear();
  running.reset();
  for (const grpc::Status& status : many.Await()) EXPECT_FALSE(status.ok());
}

// Of each refusal there is a line, or it is counted by a note.
TEST_F(Overload, IsLoggedInSoManyLinesASecondAndNotesThatCountTheOthers) {
  int64_t left_out = 0;
  for (int round = 0; round < 20 && left_out == 0; ++round) {
    service::FlushLog(absl::Seconds(60));  // of what was left out before
    testing::internal::CaptureStderr();
    const absl::Time begin = absl::Now();
    Rollouts many(server_);
    many.Start(kMany);
    many.Await();
    const absl::Duration took = absl::Now() - begin;
    service::FlushLog(absl::Seconds(60));
    const std::string log = testing::internal::GetCapturedStderr();
    const std::regex line(R"re("code":"ResourceExhausted")re");
    const auto lines = std::distance(std::sregex_iterator(log.begin(), log.end(), line), {});
    const std::regex note(
        R"re("message":"(\d+) more calls ended with ResourceExhausted; their lines)re");
    for (std::sregex_iterator found(log.begin(), log.end(), note), end; found != end; ++found) {
      left_out += std::stoll((*found)[1]);
    }
    EXPECT_EQ(lines + left_out, kMany) << log;
    EXPECT_LE(static_cast<double>(lines), 200 * (absl::ToDoubleSeconds(took) + 2));
  }
  EXPECT_GT(left_out, 0);
}

// ---- Callers ----

class CallersTest : public testing::Test {
 protected:
  CallersTest() {
    std::ofstream(path_) << "few-token name=few requests=1\n"
                         << "slow-token name=slow instance_steps_per_second=100\n"
                         << "ample-token name=ample instance_steps_per_second=100000\n"
                         << "small-token name=small memory_bytes=8388608\n"
                         << "heavy-token name=heavy weight=3\n"
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
  static double Steps(RunningServer& server, const std::string& direction) {
    return server.Series().at("simgrad_steps_total{direction=\"" + direction + "\"}");
  }
  // The seconds until the caller may ask again; 0: it was let in.
  static double WaitOf(RunningServer& server, const std::string& token) {
    const grpc::Status status = AskAs(server, token, BallRollout(3)).status;
    if (status.ok()) return 0;
    ExpectLimit(status, true);
    const auto delay = DetailsOf(status).retry.retry_delay();
    return static_cast<double>(delay.seconds()) + 1e-9 * delay.nanos();
  }
  // Cancels a call once so many instance-steps ran. Returns the seconds that it took.
  template <class Reader>
  static double CancelAfter(RunningServer& server, double steps, const std::string& direction,
                            grpc::ClientContext& context, Reader& reader) {
    const absl::Time begin = absl::Now();
    EXPECT_TRUE(Eventually([&] { return Steps(server, direction) >= steps; }));
    context.TryCancel();
    EXPECT_EQ(reader.Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(Eventually([&] { return server.server().queue().running() == 0; }));
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }
  // The wait of a caller that had a second's worth, and was charged for `least` to `most` steps.
  static void ExpectPaid(double wait, double rate, double least, double most, double seconds) {
    constexpr double kSlack = 1;  // seconds, of this test itself
    EXPECT_GE(wait, least / rate - 1 - seconds - kSlack);
    EXPECT_LE(wait, most / rate + kSlack);
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

constexpr double kChunk = 16;  // steps, of EndlessRollout

TEST_F(CallersTest, PayOfARolloutThatEndsEarlyForTheStepsThatRan) {
  RunningServer cancelled(config_);
  grpc::ClientContext context;
  Authorize(context, "slow-token");
  auto reader = cancelled.Rollout(&context, EndlessRollout());
  const double seconds = CancelAfter(cancelled, 2000, "forward", context, *reader);
  const double ran = Steps(cancelled, "forward");
  ExpectPaid(WaitOf(cancelled, "slow-token"), 100, ran, ran + kChunk, seconds);

  RunningServer late(config_);
  const absl::Time begin = absl::Now();
  grpc::ClientContext late_context;
  Authorize(late_context, "slow-token");
  late_context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  auto late_reader = late.Rollout(&late_context, EndlessRollout());
  EXPECT_EQ(late_reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(Eventually([&] { return late.server().queue().running() == 0; }));
  const double ran_late = Steps(late, "forward");
  ExpectPaid(WaitOf(late, "slow-token"), 100, ran_late, ran_late + kChunk,
             absl::ToDoubleSeconds(absl::Now() - begin));
}

TEST_F(CallersTest, PayForAChunkThatBeganAndWasStopped) {
  RunningServer server(config_);
  // A chunk of so many steps takes far longer than the call may.
  constexpr int64_t kElements = 1 << 17, kLongChunk = 4000;
  v1::RolloutRequest request = EndlessRollout();
  v1::RolloutSpec& spec = *request.mutable_spec();
  (*spec.mutable_world()->mutable_config())["elements"].set_number(kElements);
  for (v1::NamedTensor& state : *spec.mutable_initial()) {
    SetDoubles(std::vector<double>(kElements, 0.5), {kElements}, *state.mutable_tensor());
  }
  spec.set_chunk_steps(kLongChunk);
  grpc::ClientContext context;
  Authorize(context, "slow-token");
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  auto reader = server.Rollout(&context, request);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(Eventually([&] { return server.server().queue().running() == 0; }));
  ASSERT_EQ(Steps(server, "forward"), 0);
  ExpectPaid(WaitOf(server, "slow-token"), 100, kLongChunk, kLongChunk, 2);
}

TEST_F(CallersTest, PayOfACompareThatEndsEarlyForTheStepsThatRan) {
  RunningServer server(config_);
  v1::CompareRequest request;
  *request.mutable_rollout() = EndlessRollout();
  request.mutable_rollout()->mutable_spec()->set_steps(1000);
  request.add_variants()->set_steps(10'000'000);
  request.set_without_paths(true);
  grpc::ClientContext context;
  Authorize(context, "slow-token");
  PartReader<v1::CompareResponse> reader(server.stub().Compare(&context, request));
  const double seconds = CancelAfter(server, 3000, "forward", context, reader);
  const double ran = Steps(server, "forward");
  ExpectPaid(WaitOf(server, "slow-token"), 100, ran, ran + kChunk, seconds);
}

TEST_F(CallersTest, PayOfAVjpThatEndsEarlyForTheStepsThatRan) {
  constexpr int64_t kSteps = 2000, kInstances = 64;
  constexpr double kOne = kSteps * kInstances;
  RunningServer server(config_);
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = BallGradient(kSteps, kInstances).spec();
  rollout.mutable_keep()->add_cotangent_final_state("y");
  const auto kept = AskAs(server, "ample-token", rollout);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  ASSERT_TRUE(Eventually([&] { return WaitOf(server, "ample-token") == 0; }));
  v1::VjpRequest request;
  request.set_handle(kept.result().kept().handle());
  for (int i = 0; i < 200; ++i) {
    AddTensor(request.add_cotangents()->mutable_final_state(), "y",
              std::vector<double>(kInstances, 1.0), {kInstances, 1});
  }
  grpc::ClientContext context;
  Authorize(context, "ample-token");
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, request));
  const double seconds = CancelAfter(server, 5 * kOne, "adjoint", context, reader);
  const double ran = Steps(server, "adjoint");
  ASSERT_LT(ran, 100 * kOne);
  ExpectPaid(WaitOf(server, "ample-token"), 1e5, ran, ran + kOne, seconds);
}

TEST_F(CallersTest, HaveAsMuchMemoryAsTheFileSays) {
  RunningServer server(config_);
  EXPECT_TRUE(AskAs(server, "small-token", BallRollout(3)).status.ok());
  ExpectLimit(AskAs(server, "small-token", BallRollout(3, 50'000)).status, false);
  EXPECT_EQ(Of(server, "rejected_total", R"(caller="small",reason="share")"), 1);
}

// The request of a caller's call of this number.
using MakeRequest = std::function<v1::RolloutRequest(int64_t number)>;

// Keeps so many rollouts of a caller open, and counts the answers.
class OpenRollouts {
 public:
  OpenRollouts(RunningServer& server, std::string token, MakeRequest request, int count)
      : token_(std::move(token)),
        request_(std::move(request)),
        stub_(v1::Simgrad::NewStub(server.channel())),
        calls_(static_cast<size_t>(count)) {
    for (Call& call : calls_) Begin(call);
    thread_ = std::thread([this] { Work(); });
  }
  ~OpenRollouts() {
    stops_ = true;
    thread_.join();
  }
  int64_t answered() const { return answered_; }

 private:
  struct Call {
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncReader<v1::RolloutResponse>> reader;
    v1::RolloutResponse message;
    grpc::Status status;
    bool ends = false;
  };
  void Begin(Call& call) {
    call.reader = nullptr;  // it refers to the context
    call.context.emplace();
    call.context->AddMetadata("authorization", "Bearer " + token_);
    call.ends = false;
    call.reader = stub_->PrepareAsyncRollout(&*call.context, request_(begun_++), &queue_);
    call.reader->StartCall(&call);
  }
  void Work() {
    void* tag = nullptr;
    bool ok = false;
    for (size_t open = calls_.size(); open > 0 && queue_.Next(&tag, &ok);) {
      Call& call = *static_cast<Call*>(tag);
      if (call.ends) {
        EXPECT_TRUE(call.status.ok()) << call.status.error_message();
        ++answered_;
        stops_ ? static_cast<void>(--open) : Begin(call);
      } else if (ok) {
        call.reader->Read(&call.message, &call);
      } else {
        call.ends = true;
        call.reader->Finish(&call.status, &call);
      }
    }
  }

  const std::string token_;
  const MakeRequest request_;
  const std::unique_ptr<v1::Simgrad::Stub> stub_;
  grpc::CompletionQueue queue_;
  std::vector<Call> calls_;
  int64_t begun_ = 0;
  std::atomic<bool> stops_{false};
  std::atomic<int64_t> answered_{0};
  std::thread thread_;
};

// What a caller of weight 3 with 15 rollouts open gets, of that of one of weight 1 with 45.
double ShareOfTheHeavy(const config::ServerConfig& config, const MakeRequest& request) {
  RunningServer server(config);
  const OpenRollouts many(
      server, "nameless-token", [&](int64_t number) { return request(2 * number); }, 45);
  const OpenRollouts few(
      server, "heavy-token", [&](int64_t number) { return request(2 * number + 1); }, 15);
  EXPECT_TRUE(Eventually([&] { return many.answered() > 45 && few.answered() > 15; }));
  const int64_t many_before = many.answered(), few_before = few.answered();
  EXPECT_TRUE(Eventually([&] { return many.answered() >= many_before + 60; }));
  return static_cast<double>(few.answered() - few_before) /
         static_cast<double>(many.answered() - many_before);
}

// By requests both would have a third of it, by callers as much as the other.
TEST_F(CallersTest, ShareTheWorkersByWeightHoweverMuchTheyHaveOpen) {
  config_.workers = 1;
  const double share = ShareOfTheHeavy(config_, [](int64_t) { return BallRollout(200, 200); });
  EXPECT_GE(share, 1.5);
  EXPECT_LE(share, 6);
}

// One step of a thousand operations, by a name that no cache has: all of its work is preparation,
// and more of it than whatever client and server do for a call besides.
v1::RolloutRequest LongProgram(int64_t number) {
  static const v1::RolloutRequest* const request = [] {
    constexpr int kOperations = 500;
    sim::Builder b("long");
    sim::Var next = b.State("x", {});
    for (int i = 0; i < kOperations; ++i)
      next = next * b.Literal(0.5 + i) + b.Literal(1.0 / (i + 1));
    b.SetNext({next});
    const auto program = b.Finish();
    EXPECT_TRUE(program.ok()) << program.status();
    auto* const made = new v1::RolloutRequest;
    v1::RolloutSpec* const spec = made->mutable_spec();
    *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
    spec->set_steps(1);
    AddTensor(spec->mutable_initial(), "x", {1.0}, {});
    return made;
  }();
  v1::RolloutRequest named = *request;
  named.mutable_spec()->mutable_world()->mutable_program()->set_name(absl::StrCat("long", number));
  return named;
}

// The threads that read calls would prepare such work as it comes.
TEST_F(CallersTest, ShareThePreparationOfSmallWorkByWeightToo) {
  config_.workers = 2;
  const double share = ShareOfTheHeavy(config_, LongProgram);
  EXPECT_GE(share, 1.5);
  EXPECT_LE(share, 6);
}

// ---- One budget ----

using Reserved = std::variant<scheduling::MemoryBudget::Reservation, scheduling::Refusal>;

// What a thread is about to let go of cannot be given up yet: asks until it can.
Reserved ReserveAll(RunningServer& server, const config::ServerConfig& config) {
  auto& scheduler = const_cast<scheduling::Scheduler&>(server.server().queue());
  Reserved all = scheduling::Refusal();
  EXPECT_TRUE(Eventually([&] {
    all = scheduler.Reserve(config.memory_limit_bytes, scheduling::MemoryUse::kWork,
                            scheduler.callers().Find("greedy"));
    return std::holds_alternative<scheduling::MemoryBudget::Reservation>(all);
  }));
  return all;
}

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
  // Little work that never came back.
  EXPECT_EQ(series.at(R"(simgrad_cache_entries{cache="plans"})"), 0);
  EXPECT_EQ(series.at(R"(simgrad_memory_reserved_bytes{use="cache"})"), cached);
  EXPECT_EQ(series.at(R"(simgrad_memory_reserved_bytes{use="work"})"), 0);
  // Work that needs all there is gets it.
  {
    const auto all = ReserveAll(server, config);
    EXPECT_TRUE(std::holds_alternative<scheduling::MemoryBudget::Reservation>(all));
    EXPECT_EQ(server.Series().at(R"(simgrad_cache_entries{cache="programs"})"), 0);
  }
  EXPECT_TRUE(Ask(server, BallRollout(1)).status.ok());
}

// Of a size that is compiled at once.
v1::RolloutRequest CompiledRollout() { return BallRollout(200, 2000); }

double Held(const std::map<std::string, double>& series) {
  double bytes = 0;
  for (const char* cache : {"programs", "worlds", "plans", "kernels"}) {
    bytes += series.at(std::string("simgrad_cache_bytes{cache=\"") + cache + "\"}");
  }
  return bytes;
}

TEST(Memory, OfKernelsIsCountedAndGivenUpToWork) {
  const char* const quick = R"(simgrad_kernel_compiles_total{backend="cpu",quality="quick"})";
  const char* const best = R"(simgrad_kernel_compiles_total{backend="cpu",quality="best"})";
  config::ServerConfig config = FreePorts();
  config.device = "cpu";
  config.memory_limit_bytes = int64_t{256} << 20;
  RunningServer server(config);
  EXPECT_EQ(server.Series().at(quick), 0);
  // Best code follows at once, or when quick code has run for long enough.
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(Ask(server, CompiledRollout()).status.ok());
    return server.Series().at(best) == 1;
  }));
  // A compilation is counted before its code is kept.
  const char* const kept = R"(simgrad_cache_entries{cache="kernels"})";
  ASSERT_TRUE(Eventually([&] {
    return server.Series().at(kept) == 2 && server.server().queue().memory_used_bytes() == 0;
  }));
  auto series = server.Series();
  EXPECT_EQ(series.at(quick), 1);
  EXPECT_EQ(series.at(best), 1);
  EXPECT_GT(series.at(R"(simgrad_kernel_compile_seconds_sum{backend="cpu",quality="quick"})"), 0);
  EXPECT_GT(series.at(R"(simgrad_cache_bytes{cache="kernels"})"), 1000);
  EXPECT_EQ(series.at(R"(simgrad_cache_entries{cache="plans"})"), 1);
  EXPECT_EQ(series.at(R"(simgrad_memory_reserved_bytes{use="cache"})"), Held(series));
  {
    const auto all = ReserveAll(server, config);
    EXPECT_TRUE(std::holds_alternative<scheduling::MemoryBudget::Reservation>(all));
    EXPECT_EQ(server.Series().at(kept), 0);
    EXPECT_EQ(server.Series().at(R"(simgrad_cache_entries{cache="plans"})"), 0);
    EXPECT_EQ(server.Series().at(R"(simgrad_memory_reserved_bytes{use="cache"})"), 0);
  }
  EXPECT_TRUE(Ask(server, CompiledRollout()).status.ok());
}

}  // namespace
}  // namespace simgrad::server
