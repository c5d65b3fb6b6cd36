// What the server finds when it checks itself, and that it says so.
#include "server/service/self_check.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/service/call_probe.h"
#include "server/service/health_call.h"
#include "server/service/port_probe.h"
#include "server/service/rollout_probe.h"
#include "tests/server/hanging_executor.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using service::PortSpeaks;
using service::SelfCheck;

// So short a time limit may be missed on a busy machine: it suits what fails anyhow.
constexpr absl::Duration kOften = absl::Milliseconds(100);

config::ServerConfig Checked(absl::Duration interval = kOften) {
  config::ServerConfig config = FreePorts();
  config.self_check_interval = interval;
  return config;
}

double Ready(const RunningServer& server) { return server.Series().at("simgrad_ready"); }

// In a folder of this process, as another may run the same test.
std::string PathOf(const std::string& name) {
  const std::string folder = testing::TempDir() + "/self_check." + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  return folder + "/" + name;
}

// Over a connection of its own.
bool SaysServing(int port) {
  const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                                 grpc::InsecureChannelCredentials(), {});
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  const service::HealthAnswer answer = service::AskHealth(channel, deadline);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return answer.serving;
}

bool IsWell(const RunningServer& server) { return Ready(server) == 1.0; }

// Enough checks for a verdict, which a busy machine that misses one or two does not change.
void ExpectNeverFails(RunningServer& server) {
  const int64_t before = server.server().self_check()->checks();
  EXPECT_TRUE(Eventually(
      [&] { return server.server().self_check()->checks() > before + SelfCheck::kMostFailures; }));
  EXPECT_FALSE(server.server().HasFailedSelfCheck());
  EXPECT_TRUE(Eventually([&] { return IsWell(server); }));
}
constexpr absl::Duration kPatiently = absl::Milliseconds(500);

void AwaitAGoodCheck(RunningServer& server) {
  EXPECT_TRUE(
      Eventually([&] { return server.server().self_check()->checks() > 1 && IsWell(server); }));
}

constexpr absl::Duration kAtOnce = absl::Milliseconds(1);
constexpr absl::Duration kNoLimit = absl::Minutes(10);

// A probe that does what a test wants. Its threads outlive the check and the test: they share what
// they touch.
class Steered {
 public:
  SelfCheck::Probe Probe() const {
    return {"steered", [state = state_] {
              std::unique_lock lock(state->mutex);
              state->most_running = std::max(state->most_running, ++state->running);
              state->changed.wait(lock, [&] { return !state->hangs; });
              --state->running;
              return state->answer;
            }};
  }
  bool IsRunning() const {
    const std::lock_guard lock(state_->mutex);
    return state_->running > 0;
  }
  int most_running() const {
    const std::lock_guard lock(state_->mutex);
    return state_->most_running;
  }
  void Set(const absl::Status& status, bool hang) {
    const std::lock_guard lock(state_->mutex);
    state_->answer = status;
    state_->hangs = hang;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    absl::Status answer;
    bool hangs = false;
    int running = 0;
    int most_running = 0;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Told {
  std::mutex mutex;
  std::vector<absl::Status> all;
  std::function<void(const absl::Status&)> Listener() {
    return [this](const absl::Status& status) {
      const std::lock_guard lock(mutex);
      all.push_back(status);
    };
  }
  size_t size() {
    const std::lock_guard lock(mutex);
    return all.size();
  }
};

TEST(SelfCheck, TellsChangesAlone) {
  Steered steered;
  Told told;
  SelfCheck check(kAtOnce, kNoLimit, {steered.Probe()}, told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= 3; }));
  EXPECT_EQ(told.size(), 0u);
  steered.Set(absl::UnavailableError("it is gone"), false);
  EXPECT_TRUE(Eventually([&] { return told.size() == 1; }));
  steered.Set(absl::OkStatus(), false);
  EXPECT_TRUE(Eventually([&] { return told.size() == 2; }));
  const int64_t before = check.checks();
  EXPECT_TRUE(Eventually([&] { return check.checks() >= before + 3; }));
  check.Stop();
  const std::lock_guard lock(told.mutex);
  ASSERT_EQ(told.all.size(), 2u);
  EXPECT_EQ(told.all[0].message(), "steered: it is gone");
  EXPECT_TRUE(told.all[1].ok());
}

TEST(SelfCheck, AProbeThatHangsFailsIsNotBegunTwiceAndMayRecover) {
  Steered well, hanging;
  Told told;
  hanging.Set(absl::OkStatus(), true);
  SelfCheck check(kAtOnce, absl::Milliseconds(20), {well.Probe(), hanging.Probe()},
                  told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= SelfCheck::kMostFailures; }));
  EXPECT_TRUE(check.HasFailed());
  hanging.Set(absl::OkStatus(), false);
  // A busy machine may miss so short a limit once more.
  EXPECT_TRUE(Eventually([&] { return told.size() >= 2; }));
  EXPECT_TRUE(check.HasFailed());  // whoever looks late must see it
  check.Stop();
  const std::lock_guard lock(told.mutex);
  EXPECT_TRUE(told.all[1].ok());
  EXPECT_EQ(hanging.most_running(), 1);
  EXPECT_NE(std::string(told.all[0].message()).find("did not end within 20ms"), std::string::npos);
}

TEST(SelfCheck, AProbeThatWaitsForWorkThatGoesOnIsNoFailure) {
  Steered waiting;
  Told told;
  waiting.Set(absl::OkStatus(), true);
  const auto works = std::make_shared<std::atomic<bool>>(true);
  SelfCheck::Probe probe = waiting.Probe();
  probe.is_held_up = [works] { return works->load(); };
  SelfCheck check(kAtOnce, absl::Milliseconds(20), {probe}, told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= 2 * SelfCheck::kMostFailures; }));
  EXPECT_EQ(told.size(), 0u);
  EXPECT_FALSE(check.HasFailed());
  *works = false;  // and yet it does not end
  EXPECT_TRUE(Eventually([&] { return check.HasFailed(); }));
  EXPECT_EQ(told.size(), 1u);
  waiting.Set(absl::OkStatus(), false);
}

TEST(SelfCheck, WorkThatHasJustEndedLeavesTheProbeOneMoreCheck) {
  Steered waiting;
  Told told;
  waiting.Set(absl::OkStatus(), true);
  const auto asked = std::make_shared<std::atomic<int>>(0);
  SelfCheck::Probe probe = waiting.Probe();
  probe.is_held_up = [asked] { return ++*asked % 2 == 0; };
  SelfCheck check(kAtOnce, absl::Milliseconds(20), {probe}, told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= 2 * SelfCheck::kMostFailures; }));
  EXPECT_EQ(told.size(), 0u);
  waiting.Set(absl::OkStatus(), false);
}

TEST(SelfCheck, FourFailuresInARowAreNotFive) {
  const auto runs = std::make_shared<std::atomic<int>>(0);
  const auto probe = [runs]() -> absl::Status {
    return ++*runs % SelfCheck::kMostFailures == 0 ? absl::OkStatus()
                                                   : absl::UnavailableError("no");
  };
  Told told;
  SelfCheck check(kAtOnce, kNoLimit, {{"mostly failing", probe}}, told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= 4 * SelfCheck::kMostFailures; }));
  EXPECT_FALSE(check.HasFailed());
}

TEST(SelfCheck, WhatCouldNotBeTriedIsNoFailure) {
  Told told;
  SelfCheck check(kAtOnce, kNoLimit,
                  {{"throwing", []() -> absl::Status { throw std::bad_alloc(); }}},
                  told.Listener());
  EXPECT_TRUE(Eventually([&] { return check.checks() >= 3; }));
  EXPECT_EQ(told.size(), 0u);
}

TEST(SelfCheck, ItsEndWaitsForNoProbe) {
  Steered hanging;
  hanging.Set(absl::OkStatus(), true);
  {
    SelfCheck check(kAtOnce, kNoLimit, {hanging.Probe()}, [](const absl::Status&) {});
    EXPECT_TRUE(Eventually([&] { return hanging.IsRunning(); }));
  }
  hanging.Set(absl::OkStatus(), false);
}

TEST(RolloutProbe, RunsARolloutToItsEnd) {
  const auto work = service::SmallestRollout();
  ASSERT_TRUE(work.ok()) << work.status();
  const sim::Engine engine(std::shared_ptr<sim::Executor>(sim::MakeHostExecutor()));
  sim::Observer nobody;
  const auto result = engine.Execute(*work, nobody);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps_done, 1);
}

TEST(PortProbe, APortThatIsSilentOrClosedFailsAndOneThatRefusesDoesNot) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener.number(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  for (const PortSpeaks speaks : {PortSpeaks::kPlaintext, PortSpeaks::kTls}) {
    const auto ask = [&](absl::Duration limit) {
      return service::TryPort("127.0.0.1", port, speaks, limit);
    };
    EXPECT_EQ(ask(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable);  // nobody listens
  }
  ASSERT_EQ(listen(listener.number(), 16), 0);
  for (const PortSpeaks speaks : {PortSpeaks::kPlaintext, PortSpeaks::kTls}) {
    const auto ask = [&](absl::Duration limit) {
      return service::TryPort("127.0.0.1", port, speaks, limit);
    };
    EXPECT_EQ(ask(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
    Descriptor(accept(listener.number(), nullptr, nullptr));  // the one that gave up
    std::thread refuses([&] { Descriptor(accept(listener.number(), nullptr, nullptr)); });
    EXPECT_TRUE(ask(absl::Seconds(60)).ok());
    refuses.join();
  }
}

// Calls of any name that never come back to gRPC's thread until they are released.
class Blocking final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      void OnDone() override { delete this; }
    };
    std::unique_lock lock(mutex_);
    ++blocked_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
    auto* reactor = new Reactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  int blocked() {
    const std::lock_guard lock(mutex_);
    return blocked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  int blocked_ = 0;
};

// Calls of one method, begun at once.
class Flood {
 public:
  Flood(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
        const std::string& request)
      : stub_(channel), method_(method), request_(request) {}
  void Begin() {
    auto call = std::make_unique<Call>();
    const grpc::Slice slice(request_);
    const grpc::ByteBuffer bytes(&slice, 1);
    call->reader = stub_.PrepareUnaryCall(&call->context, method_, bytes, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->response, &call->status, nullptr);
    calls_.push_back(std::move(call));
  }
  void End() {
    void* tag = nullptr;
    bool ok = false;
    // An answer of several messages would wait for a reader.
    for (const auto& call : calls_) call->context.TryCancel();
    for (size_t i = 0; i < calls_.size(); ++i) queue_.Next(&tag, &ok);
    calls_.clear();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer response;
    grpc::Status status;
  };
  grpc::GenericStub stub_;
  const std::string method_, request_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

constexpr int kMoreCallsThanThreads = 64;

TEST(CallProbe, FailsWhereEveryThreadOfTheServerIsBlocked) {
  grpc::EnableDefaultHealthCheckService(true);
  Blocking blocking;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&blocking);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  service::CallProbe probe(server.get());
  EXPECT_TRUE(probe.Try(absl::Seconds(60)).ok());
  Flood flood(server->InProcessChannel({}), "/any/Method", "");
  for (int i = 0; i < kMoreCallsThanThreads; ++i) flood.Begin();
  EXPECT_TRUE(Eventually([&] { return !probe.Try(absl::Milliseconds(200)).ok(); }));
  EXPECT_LT(blocking.blocked(), kMoreCallsThanThreads);
  blocking.Release();
  flood.End();
  EXPECT_TRUE(probe.Try(absl::Seconds(60)).ok());
  probe.Close();
  server->Shutdown();
  probe.Join();
}

class HangingServer {
 public:
  explicit HangingServer(const config::ServerConfig& config)
      : executor_(std::make_shared<HangingExecutor>()),
        running_(service::Server::Create(config, DeviceOf(executor_)), config) {}
  ~HangingServer() { executor_->Release(); }
  RunningServer& running() { return running_; }
  HangingExecutor& executor() { return *executor_; }

 private:
  const std::shared_ptr<HangingExecutor> executor_;
  RunningServer running_;
};

int FreePort() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket.number(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

TEST(ServerSelfCheck, AnEngineThatNeverReturnsTurnsHealthAndMetricAndItsReturnTurnsThemBack) {
  config::ServerConfig config = Checked();
  config.health_port = FreePort();
  HangingServer server(config);
  RunningServer& running = server.running();
  AwaitAGoodCheck(running);
  std::thread wedge([&] { Ask(running, BallRollout(2, HangingExecutor::kWedges)); });
  EXPECT_TRUE(Eventually([&] { return Ready(running) == 0.0; }));
  EXPECT_FALSE(SaysServing(running.server().port()));
  EXPECT_FALSE(SaysServing(config.health_port));
  EXPECT_TRUE(Eventually([&] { return running.server().HasFailedSelfCheck(); }));
  server.executor().Release();
  wedge.join();
  for (const int port : {running.server().port(), config.health_port}) {
    EXPECT_TRUE(Eventually([&] { return IsWell(running) && SaysServing(port); }));
  }
  EXPECT_TRUE(Ask(running, BallRollout(2)).status.ok());
}

// The engine is well; every thread that could answer a call is not.
TEST(ServerSelfCheck, ReadyIsZeroWhileEveryRpcHangs) {
  config::ServerConfig config = Checked();
  config.workers = 2 * kMoreCallsThanThreads;  // so that all tiny work may run where it arrives
  config.queue_capacity = 2 * kMoreCallsThanThreads;
  HangingServer server(config);
  RunningServer& running = server.running();
  AwaitAGoodCheck(running);
  Flood flood(running.channel(), "/simgrad.v1.Simgrad/Rollout",
              BallRollout(1, HangingExecutor::kHangs).SerializeAsString());
  for (int i = 0; i < kMoreCallsThanThreads; ++i) flood.Begin();
  EXPECT_TRUE(Eventually([&] { return Ready(running) == 0.0; }));
  server.executor().Release();
  EXPECT_TRUE(Eventually([&] { return IsWell(running); }));
  flood.End();
}

// Descriptors of this process that listen on the port.
std::vector<int> ListenersOf(int port) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) continue;
    sockaddr_storage bound{};
    size = sizeof(bound);
    getsockname(number, reinterpret_cast<sockaddr*>(&bound), &size);
    // The port stands at the same place in both families.
    if (ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port) == port) found.push_back(number);
  }
  return found;
}

TEST(ServerSelfCheck, AListenerThatIsGoneTurnsHealthAndMetricThoughCallsStillWork) {
  RunningServer server(Checked());
  ASSERT_TRUE(Ask(server, BallRollout(1)).status.ok());
  AwaitAGoodCheck(server);
  const std::vector<int> listeners = ListenersOf(server.server().port());
  ASSERT_FALSE(listeners.empty());
  for (const int listener : listeners) ASSERT_EQ(shutdown(listener, SHUT_RDWR), 0);
  EXPECT_TRUE(Eventually([&] { return Ready(server) == 0.0; }));
  EXPECT_TRUE(Ask(server, BallRollout(1)).status.ok());  // over the connection that is there
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  EXPECT_FALSE(service::AskHealth(server.channel(), deadline).serving);
  EXPECT_TRUE(Eventually([&] { return server.server().HasFailedSelfCheck(); }));
}

TEST(ServerSelfCheck, ARefusalForLoadOrTokenIsNoFailure) {
  const std::string tokens = PathOf("tokens");
  std::ofstream(tokens) << "secret\n";
  config::ServerConfig config = Checked(kPatiently);
  config.token_file = tokens;
  config.workers = 1;
  config.queue_capacity = 0;
  RunningServer server(config);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  auto reader = server.Rollout(&context, EndlessRollout());
  v1::RolloutPart part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_FALSE(Ask(server, BallRollout(1)).status.ok());
  ExpectNeverFails(server);
  context.TryCancel();
}

TEST(ServerSelfCheck, TlsAndMutualTlsAreNoFailure) {
  const std::string key = PathOf("key");
  const std::string certificate = PathOf("certificate");
  const std::string make =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
      "-subj /CN=localhost -keyout " +
      key + " -out " + certificate + " 2>/dev/null";
  ASSERT_EQ(std::system(make.c_str()), 0);
  config::ServerConfig config = Checked(kPatiently);
  config.tls_key = key;
  config.tls_certificate = certificate;
  for (const char* mutual : {"", certificate.c_str()}) {
    config.tls_client_ca = mutual;
    RunningServer server(config);
    ExpectNeverFails(server);
    EXPECT_TRUE(
        service::TryPort("127.0.0.1", server.server().port(), PortSpeaks::kTls, absl::Seconds(60))
            .ok());
  }
}

TEST(ServerSelfCheck, SaysNothingWhileDraining) {
  HangingServer server(Checked());
  RunningServer& running = server.running();
  AwaitAGoodCheck(running);
  running.server().StopAdmission();
  const int64_t before = running.server().self_check()->checks();
  std::thread wedge([&] { Ask(running, BallRollout(2, HangingExecutor::kWedges)); });
  wedge.join();  // refused
  EXPECT_EQ(Ready(running), 0.0);
  EXPECT_LE(running.server().self_check()->checks(), before + 1);
  EXPECT_FALSE(running.server().HasFailedSelfCheck());
  EXPECT_TRUE(running.server().Drain(absl::Seconds(60)));
}

TEST(ServerSelfCheck, CanBeTurnedOff) {
  config::ServerConfig config = FreePorts();
  config.self_check_interval = absl::InfiniteDuration();
  RunningServer server(config);
  EXPECT_EQ(server.server().self_check(), nullptr);
  EXPECT_FALSE(server.server().HasFailedSelfCheck());
}

}  // namespace
}  // namespace simgrad::server
