// The server under load: at saturation beside a bare gRPC echo, beyond it, and beside huge work.
//
// The echo is a callback server in a process of its own, as the server is: it answers GetServerInfo
// and Rollout with the bytes that the server answered, and does nothing else. Callers are threads
// over four connections, each with one call open; they ask again at once, also when refused. Goodput
// is measured once more with callers that are calls in flight on a completion queue, which cost no
// thread each: what is lost with the first and not with the second is the load's own. Rates that
// are compared are measured in turn, in each round; printed is one JSON line with the median
// of the rounds' ratios, and each measurement on stderr with the CPU time of a call on both sides,
// which differs less than a rate does on a machine with other work.
//
// usage: saturation TARGET PID SECONDS ROUNDS     PID: of the server, for its CPU time
//        saturation --echo                        the echo; reads its answers from stdin

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "simgrad/v1/simgrad.grpc.pb.h"

namespace {

namespace v1 = simgrad::v1;
using Clock = std::chrono::steady_clock;

// Answers that are bytes already: a server that does nothing but gRPC.
class Echo final : public v1::Simgrad::WithRawCallbackMethod_GetServerInfo<
                       v1::Simgrad::WithRawCallbackMethod_Rollout<v1::Simgrad::Service>> {
 public:
  Echo(const std::string& info, const std::string& rollout)
      : info_(Bytes(info)), rollout_(Bytes(rollout)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer*,
                                          grpc::ByteBuffer* response) override {
    *response = info_;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Rollout(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer*) override {
    class Reactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
     public:
      explicit Reactor(const grpc::ByteBuffer& answer) : answer_(answer) {
        StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
      }
      void OnDone() override { delete this; }

     private:
      grpc::ByteBuffer answer_;
    };
    return new Reactor(rollout_);
  }

 private:
  static grpc::ByteBuffer Bytes(const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::ByteBuffer info_, rollout_;
};

int RunEcho() {
  size_t sizes[2];
  std::string answers[2];
  std::cin.read(reinterpret_cast<char*>(sizes), sizeof sizes);
  for (int i = 0; i < 2; ++i) {
    answers[i].resize(sizes[i]);
    std::cin.read(answers[i].data(), static_cast<std::streamsize>(sizes[i]));
  }
  Echo echo(answers[0], answers[1]);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::printf("%d\n", port);
  std::fflush(stdout);
  std::cin.get();  // until whoever started it ends
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

// The echo as a process, until destroyed.
class EchoProcess {
 public:
  EchoProcess(const std::string& info, const std::string& rollout) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      execl("/proc/self/exe", "saturation", "--echo", nullptr);
      std::_Exit(1);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    const size_t sizes[2] = {info.size(), rollout.size()};
    Write(sizes, sizeof sizes);
    Write(info.data(), info.size());
    Write(rollout.data(), rollout.size());
    FILE* const from = fdopen(out[0], "r");
    int port = 0;
    if (from == nullptr || std::fscanf(from, "%d", &port) != 1) std::abort();
    target_ = "127.0.0.1:" + std::to_string(port);
  }
  ~EchoProcess() {
    close(to_);
    waitpid(pid_, nullptr, 0);
  }
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;
  const std::string& target() const { return target_; }
  pid_t pid() const { return pid_; }

 private:
  void Write(const void* bytes, size_t size) const {
    if (write(to_, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  }
  pid_t pid_ = -1;
  int to_ = -1;
  std::string target_;
};

v1::RolloutRequest Request(int64_t instances, int64_t steps) {
  v1::RolloutRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->mutable_world()->set_name("boundary_projection");
  spec->set_steps(steps);
  spec->set_instances(instances);
  const auto add = [](v1::NamedTensor* named, const char* name, float value, bool scalar) {
    named->set_name(name);
    named->mutable_tensor()->set_dtype(v1::DTYPE_F32);
    if (!scalar) named->mutable_tensor()->add_shape(1);
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    named->mutable_tensor()->set_inline_(bytes);
  };
  add(spec->add_initial(), "y", 1.0f, false);
  add(spec->add_params(), "k", 0.5f, true);
  return request;
}

enum class Method { kInfo, kRollout };
enum class CallerKind { kThread, kCallInFlight };

struct Load {
  Method method = Method::kInfo;
  v1::RolloutRequest request;
  int callers = 0;
};

struct Rate {
  double ok = 0, refused = 0;           // calls per second
  double p99_ms = 0;                    // of those that were answered
  double caller_us = 0, server_us = 0;  // of CPU per call
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Of another process.
double CpuSeconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  long long user = 0, system = 0;
  std::sscanf(text.c_str() + name_end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld",
              &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class Callers {
 public:
  explicit Callers(const std::string& target) {
    for (int i = 0; i < kConnections; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt("simgrad.connection", i);  // channels of equal arguments share one
      stubs_.push_back(v1::Simgrad::NewStub(
          grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments)));
    }
  }

  Rate Measure(const Load& load, CallerKind kind, pid_t server, double seconds) {
    Answers answers;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    if (kind == CallerKind::kThread) {
      for (int i = 0; i < load.callers; ++i) {
        threads.emplace_back(
            [&, i] { AskOneByOne(load, *stubs_[i % kConnections], stop, answers); });
      }
    } else {
      threads.emplace_back([&] { AskAllAtOnce(load, stop, answers); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until all callers wait
    const int64_t ok_before = answers.ok, refused_before = answers.refused;
    const double caller_before = CpuSeconds(), server_before = CpuSeconds(server);
    const auto begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const double took = SecondsSince(begin);
    const double goods = static_cast<double>(answers.ok - ok_before);
    const double bads = static_cast<double>(answers.refused - refused_before);
    Rate rate{goods / took, bads / took, 0, (CpuSeconds() - caller_before) * 1e6 / (goods + bads),
              (CpuSeconds(server) - server_before) * 1e6 / (goods + bads)};
    stop = true;
    for (std::thread& thread : threads) thread.join();
    rate.p99_ms = Quantile(std::move(answers.latencies), 0.99);
    return rate;
  }

  bool Ask(const Load& load) { return Call(*stubs_[0], load); }

  // The whole answer of one call, as bytes that an echo may send.
  std::string Answer(const Load& load) {
    grpc::ClientContext context;
    if (load.method == Method::kInfo) {
      v1::ServerInfo info;
      Check(stubs_[0]->GetServerInfo(&context, {}, &info));
      return info.SerializeAsString();
    }
    v1::RolloutResponse message;
    std::string all;
    auto reader = stubs_[0]->Rollout(&context, load.request);
    while (reader->Read(&message)) all += message.SerializeAsString();
    Check(reader->Finish());
    return all;
  }

 private:
  static constexpr int kConnections = 4;

  struct Answers {
    std::atomic<int64_t> ok{0}, refused{0};
    std::mutex mutex;
    std::vector<double> latencies;  // of good ones, ms

    void Count(bool good) { (good ? ok : refused)++; }
    void Add(const std::vector<double>& some) {
      const std::lock_guard lock(mutex);
      latencies.insert(latencies.end(), some.begin(), some.end());
    }
  };

  static void AskOneByOne(const Load& load, v1::Simgrad::Stub& stub, const std::atomic<bool>& stop,
                          Answers& answers) {
    std::vector<double> latencies;
    while (!stop) {
      const auto begin = Clock::now();
      const bool good = Call(stub, load);
      answers.Count(good);
      if (good) latencies.push_back(SecondsSince(begin) * 1e3);
    }
    answers.Add(latencies);
  }

  // A rollout in flight: read to its end, then told.
  struct InFlight {
    void Begin(v1::Simgrad::Stub& stub, const Load& load, grpc::CompletionQueue& queue) {
      reader = nullptr;  // it refers to the context
      context.emplace();
      begin = Clock::now();
      state = State::kStarts;
      reader = stub.PrepareAsyncRollout(&*context, load.request, &queue);
      reader->StartCall(this);
    }
    // Whether it has ended.
    bool GoOn(bool ok) {
      if (state == State::kEnds) return true;
      if (ok) {
        state = State::kReads;
        reader->Read(&message, this);
      } else {
        state = State::kEnds;
        reader->Finish(&status, this);
      }
      return false;
    }

    enum class State { kStarts, kReads, kEnds } state = State::kStarts;
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncReader<v1::RolloutResponse>> reader;
    v1::RolloutResponse message;
    grpc::Status status;
    Clock::time_point begin;
  };

  void AskAllAtOnce(const Load& load, const std::atomic<bool>& stop, Answers& answers) {
    grpc::CompletionQueue queue;
    std::vector<InFlight> calls(static_cast<size_t>(load.callers));
    for (size_t i = 0; i < calls.size(); ++i)
      calls[i].Begin(*stubs_[i % kConnections], load, queue);
    std::vector<double> latencies;
    void* tag = nullptr;
    bool ok = false;
    for (size_t open = calls.size(); open > 0 && queue.Next(&tag, &ok);) {
      InFlight& call = *static_cast<InFlight*>(tag);
      if (!call.GoOn(ok)) continue;
      answers.Count(call.status.ok());
      if (call.status.ok()) latencies.push_back(SecondsSince(call.begin) * 1e3);
      if (stop) {
        --open;
      } else {
        call.Begin(*stubs_[static_cast<size_t>(&call - calls.data()) % kConnections], load, queue);
      }
    }
    answers.Add(latencies);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }

  static void Check(const grpc::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "saturation: %s\n", status.error_message().c_str());
    std::exit(1);
  }
  static bool Call(v1::Simgrad::Stub& stub, const Load& load) {
    grpc::ClientContext context;
    if (load.method == Method::kInfo) {
      v1::ServerInfo info;
      return stub.GetServerInfo(&context, {}, &info).ok();
    }
    auto reader = stub.Rollout(&context, load.request);
    v1::RolloutResponse message;
    while (reader->Read(&message)) {
    }
    return reader->Finish().ok();
  }
  std::vector<std::unique_ptr<v1::Simgrad::Stub>> stubs_;
};

// An echo, and those who call it.
struct Yardstick {
  Yardstick(const std::string& info, const std::string& rollout)
      : process(info, rollout), callers(process.target()) {}
  EchoProcess process;
  Callers callers;
};

// The server and the echoes, measured in turn.
class Bench {
 public:
  Bench(const std::string& target, pid_t server, double seconds)
      : target_(target),
        service_(target),
        server_(server),
        seconds_(seconds),
        smallest_echo_(service_.Answer(kInfo), service_.Answer(kSmallest)),
        tiny_echo_("", service_.Answer(kTiny)) {}

  void Round() {
    const double info_echo = Echo(smallest_echo_, "echo info", kInfo).ok;
    Add("info_over_echo", Ours("info", kInfo).ok / info_echo);
    Echo(smallest_echo_, "echo smallest", kSmallest);
    Ours("smallest", kSmallest);
    const double tiny_echo = Echo(tiny_echo_, "echo tiny", kTiny).ok;
    Add("tiny_over_echo", Ours("tiny", kTiny).ok / tiny_echo);
    Overload();
    BesideHuge();
  }
  void Print() const {
    const char* before = "{";
    for (const auto& [name, ratios] : ratios_) {
      std::printf("%s\"%s\": %.3f", before, name.c_str(), Quantile(ratios, 0.5));
      before = ", ";
    }
    std::printf("%s\"overload_over_best\": %.3f, ", before, OverBest(goodput_));
    std::printf("\"overload_over_best_calls_in_flight\": %.3f}\n", OverBest(goodput_in_flight_));
  }

 private:
  const Load kInfo{Method::kInfo, {}, 64};
  const Load kSmallest{Method::kRollout, Request(1, 1), 64};
  const Load kTiny{Method::kRollout, Request(4, 10), 64};

  // 64 callers saturate the server, and 256 are more than its queue holds.
  void Overload() {
    for (const int callers : {16, 64, 128, 256}) {
      const Load medium{Method::kRollout, Request(100, 100), callers};
      goodput_[callers].push_back(Ours("medium rollout", medium).ok);
      goodput_in_flight_[callers].push_back(
          Ours("medium in flight", medium, CallerKind::kCallInFlight).ok);
    }
  }
  // What most callers have of the best.
  static double OverBest(const std::map<int, std::vector<double>>& goodput) {
    double best = 0, last = 0;
    for (const auto& [callers, rates] : goodput) {
      last = Quantile(rates, 0.5);
      best = std::max(best, last);
    }
    return last / best;
  }
  void BesideHuge() {
    const Load few{Method::kRollout, Request(4, 10), 8};
    const Rate alone = Ours("few tiny", few);
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0};
    std::vector<std::thread> huge;
    Callers others(target_);
    const Load load{Method::kRollout, Request(4096, 40000), 8};
    for (int i = 0; i < load.callers; ++i) {
      huge.emplace_back([&] {
        while (!stop) failed += others.Ask(load) ? 0 : 1;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until all of them are there
    const Rate beside = Ours("few beside huge", few);
    stop = true;
    for (std::thread& thread : huge) thread.join();
    if (failed > 0) {
      std::fprintf(stderr, "saturation: %d huge rollouts failed\n", failed.load());
      std::exit(1);
    }
    Add("beside_huge_rate", beside.ok / alone.ok);
    Add("beside_huge_p99", beside.p99_ms / alone.p99_ms);
  }
  Rate Echo(Yardstick& echo, const char* what, const Load& load) {
    return Shown(what, load,
                 echo.callers.Measure(load, CallerKind::kThread, echo.process.pid(), seconds_));
  }
  Rate Ours(const char* what, const Load& load, CallerKind kind = CallerKind::kThread) {
    return Shown(what, load, service_.Measure(load, kind, server_, seconds_));
  }
  static Rate Shown(const char* what, const Load& load, const Rate& rate) {
    std::fprintf(
        stderr,
        "%-16s %3d callers: ok %6.0f/s refused %5.0f/s p99 %6.2f ms, CPU of a call: caller "
        "%5.1f us, server %5.1f us\n",
        what, load.callers, rate.ok, rate.refused, rate.p99_ms, rate.caller_us, rate.server_us);
    return rate;
  }
  void Add(const char* name, double ratio) { ratios_[name].push_back(ratio); }

  const std::string target_;
  Callers service_;
  const pid_t server_;
  const double seconds_;
  Yardstick smallest_echo_, tiny_echo_;
  std::map<std::string, std::vector<double>> ratios_;
  std::map<int, std::vector<double>> goodput_, goodput_in_flight_;  // by callers
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--echo") == 0) return RunEcho();
  if (argc != 5) {
    std::fprintf(stderr, "usage: saturation TARGET PID SECONDS ROUNDS\n");
    return 2;
  }
  Bench bench(argv[1], std::atoi(argv[2]), std::atof(argv[3]));
  for (int round = 0; round < std::atoi(argv[4]); ++round) bench.Round();
  bench.Print();
  return 0;
}
