// One call that is to be ended in the middle, by this process or by the death of another, and how
// far its answer has come.
#pragma once

#include <grpcpp/create_channel.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "simgrad/v1/simgrad.grpc.pb.h"

namespace simgrad::server {

enum class Rpc { kRollout, kGradient, kDescribe, kVjp, kUpload, kCompare };
// Its name in the service.
inline const char* NameOf(Rpc rpc) {
  constexpr const char* kNames[] = {"Rollout", "Gradient", "DescribeProgram",
                                    "Vjp",     "Upload",   "Compare"};
  return kNames[static_cast<int>(rpc)];
}

// What a reader has seen of an answer; later ones are larger.
enum class Stage : int { kNone, kForward, kForwardDone, kAdjoint, kPieces, kEnded };

struct VictimOptions {
  Rpc rpc = Rpc::kRollout;
  std::string request;  // its bytes
  int port = 0;
  // After this has been seen nothing more is read; kEnded: everything is.
  Stage reads_until = Stage::kEnded;
  std::optional<std::chrono::milliseconds> deadline;
};

class Victim {
 public:
  virtual ~Victim() = default;
  // The furthest it came.
  Stage stage() const { return static_cast<Stage>(stage_.load()); }
  bool ended() const { return ended_; }

 protected:
  void Saw(Stage stage) {
    if (stage == Stage::kEnded) {
      ended_ = true;
    } else {
      stage_ = static_cast<int>(stage);
    }
  }

 private:
  std::atomic<int> stage_{0};
  std::atomic<bool> ended_{false};
};

// A call of this process, read by a thread of its own.
class LocalVictim : public Victim {
 public:
  explicit LocalVictim(VictimOptions options);
  ~LocalVictim() override;
  void Cancel() { context_.TryCancel(); }
  // Reads what is left.
  grpc::Status End();

 private:
  const VictimOptions options_;
  grpc::ClientContext context_;
  std::atomic<bool> goes_on_{false};
  grpc::Status status_;
  std::thread thread_;
};

// A call of a process of its own, which is killed.
class ForeignVictim : public Victim {
 public:
  explicit ForeignVictim(const VictimOptions& options);
  ~ForeignVictim() override;
  void Kill();  // SIGKILL; returns once the process is gone

 private:
  int process_ = -1;
  int told_ = -1;  // a byte for each stage
  std::thread listener_;
};

// What such a process runs: the options stand in argv[2..], the request is read from stdin.
int RunForeignVictim(char** arguments);

}  // namespace simgrad::server
