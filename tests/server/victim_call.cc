#include "tests/server/victim_call.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

extern char** environ;

namespace simgrad::server {
namespace {

template <class Part>
Stage StageOf(const Part& part) {
  if (part.has_piece()) return Stage::kPieces;
  if (!part.has_progress()) return Stage::kNone;
  const v1::Progress& progress = part.progress();
  if (progress.phase() == "adjoint") return Stage::kAdjoint;
  return progress.steps_done() == progress.steps_total() ? Stage::kForwardDone : Stage::kForward;
}

struct Listener {
  std::function<void(Stage)> saw;
  std::function<void()> pause;  // nothing is read meanwhile
};

// Parts count from the header of run `run` on, the first being 1.
template <class Response, class Reader>
grpc::Status ReadAll(Reader reader, Stage reads_until, const Listener& listener, int run = 1) {
  Stage furthest = Stage::kNone;
  int runs = 0;
  bool paused = false;
  for (Response message; reader->Read(&message);) {
    for (const auto& part : message.parts()) {
      runs += part.has_header() ? 1 : 0;
      const Stage stage = StageOf(part);
      if (runs < run || stage <= furthest) continue;
      furthest = stage;
      listener.saw(stage);
    }
    if (paused || runs < run || furthest < reads_until) continue;
    paused = true;
    listener.pause();
  }
  const grpc::Status status = reader->Finish();
  listener.saw(Stage::kEnded);
  return status;
}

grpc::Status Call(const VictimOptions& options, grpc::ClientContext& context,
                  const Listener& listener) {
  // A connection of its own, with a window that stays small: gRPC widens the window of a busy
  // connection by what it measures, and a wide one takes a whole answer that nobody reads.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(options.port),
                                                 grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::Simgrad::NewStub(channel);
  if (options.deadline) {
    context.set_deadline(std::chrono::system_clock::now() + *options.deadline);
  }
  if (options.rpc == Rpc::kDescribe) {
    v1::DescribeProgramRequest request;
    request.ParseFromString(options.request);
    v1::DescribeProgramResponse response;
    const grpc::Status status = stub->DescribeProgram(&context, request, &response);
    listener.saw(Stage::kEnded);
    return status;
  }
  if (options.rpc == Rpc::kUpload) {
    v1::UploadRequest request;
    request.ParseFromString(options.request);
    v1::UploadResponse response;
    const auto writer = stub->Upload(&context, &response);
    writer->WriteLast(request, grpc::WriteOptions());
    const grpc::Status status = writer->Finish();
    listener.saw(Stage::kEnded);
    return status;
  }
  if (options.rpc == Rpc::kRollout) {
    v1::RolloutRequest request;
    request.ParseFromString(options.request);
    return ReadAll<v1::RolloutResponse>(stub->Rollout(&context, request), options.reads_until,
                                        listener);
  }
  if (options.rpc == Rpc::kCompare) {
    // Of the reference and one variant, which is the one to be ended.
    v1::CompareRequest request;
    request.ParseFromString(options.request);
    return ReadAll<v1::CompareResponse>(stub->Compare(&context, request), options.reads_until,
                                        listener, 2);
  }
  if (options.rpc == Rpc::kVjp) {
    v1::VjpRequest request;
    request.ParseFromString(options.request);
    return ReadAll<v1::GradientResponse>(stub->Vjp(&context, request), options.reads_until,
                                         listener);
  }
  v1::GradientRequest request;
  request.ParseFromString(options.request);
  return ReadAll<v1::GradientResponse>(stub->Gradient(&context, request), options.reads_until,
                                       listener);
}

}  // namespace

LocalVictim::LocalVictim(VictimOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] {
    status_ = Call(options_, context_,
                   {[this](Stage stage) { Saw(stage); }, [this] { goes_on_.wait(false); }});
  });
}

LocalVictim::~LocalVictim() {
  context_.TryCancel();
  End();
}

grpc::Status LocalVictim::End() {
  goes_on_ = true;
  goes_on_.notify_all();
  if (thread_.joinable()) thread_.join();
  return status_;
}

ForeignVictim::ForeignVictim(const VictimOptions& options) {
  int request[2], told[2];
  EXPECT_EQ(pipe(request), 0);
  EXPECT_EQ(pipe(told), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, request[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, told[1], STDOUT_FILENO);
  for (int end : {request[0], request[1], told[0], told[1]}) {
    posix_spawn_file_actions_addclose(&actions, end);
  }
  const std::string words[] = {"victim", "--victim", std::to_string(static_cast<int>(options.rpc)),
                               std::to_string(options.port),
                               std::to_string(static_cast<int>(options.reads_until))};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ),
            0);
  posix_spawn_file_actions_destroy(&actions);
  close(request[0]);
  close(told[1]);
  for (size_t sent = 0; sent < options.request.size();) {
    const ssize_t n =
        write(request[1], options.request.data() + sent, options.request.size() - sent);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  close(request[1]);
  told_ = told[0];
  listener_ = std::thread([this] {
    for (char stage; read(told_, &stage, 1) == 1;) Saw(static_cast<Stage>(stage));
  });
}

ForeignVictim::~ForeignVictim() {
  Kill();
  listener_.join();
  close(told_);
}

void ForeignVictim::Kill() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

int RunForeignVictim(char** arguments) {
  VictimOptions options;
  options.rpc = static_cast<Rpc>(std::stoi(arguments[2]));
  options.port = std::stoi(arguments[3]);
  options.reads_until = static_cast<Stage>(std::stoi(arguments[4]));
  char buffer[1 << 16];
  for (ssize_t n; (n = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0;) {
    options.request.append(buffer, static_cast<size_t>(n));
  }
  grpc::ClientContext context;
  const auto tell = [](Stage stage) {
    const char byte = static_cast<char>(stage);
    if (write(STDOUT_FILENO, &byte, 1) != 1) _exit(1);
  };
  Call(options, context, {tell, [] {
                            for (;;) pause();
                          }});
  return 0;
}

}  // namespace simgrad::server
