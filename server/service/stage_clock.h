// Measures where the time of a request goes: one stage at a time, so that stages add up whatever
// the request's end is.
//
// Threads: one, that of the worker. Cost: a look at the clock per change of stage.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace simgrad::server::service {

// The first three are over before the clock runs. kStart: kernels or plans are compiled, inputs
// taken to the device; kSend: handing over to the stream, waiting for a slow reader included. kNone
// is counted by none.
enum class Stage {
  kNone,
  kQueue,
  kDecode,
  kCompile,
  kStart,
  kForward,
  kRecompute,
  kAdjoint,
  kEncode,
  kSend
};
inline constexpr std::array<const char*, 10> kStageNames = {
    "", "queue", "decode", "compile", "start", "forward", "recompute", "adjoint", "encode", "send"};

class StageClock {
 public:
  Stage Enter(Stage stage) {  // returns the one that ends
    const auto now = std::chrono::steady_clock::now();
    seconds_[Index(stage_)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    const Stage before = stage_;
    stage_ = stage;
    return before;
  }
  double seconds(Stage stage) const { return seconds_[Index(stage)]; }

 private:
  static size_t Index(Stage stage) { return static_cast<size_t>(stage); }
  std::array<double, kStageNames.size()> seconds_{};
  Stage stage_ = Stage::kNone;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// A stage within another, which goes on afterwards.
class WithinStage {
 public:
  WithinStage(StageClock& clock, Stage stage) : clock_(clock), before_(clock.Enter(stage)) {}
  ~WithinStage() { clock_.Enter(before_); }
  WithinStage(const WithinStage&) = delete;
  WithinStage& operator=(const WithinStage&) = delete;

 private:
  StageClock& clock_;
  const Stage before_;
};

}  // namespace simgrad::server::service
