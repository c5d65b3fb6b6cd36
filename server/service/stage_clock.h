// Measures where the time of a request goes: one stage at a time, so that stages add up whatever
// the request's end is.
//
// Threads: one, that of the worker. Cost: a look at the clock per change of stage.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace simgrad::server::service {

using SteadyTime = std::chrono::steady_clock::time_point;

// A moment by two clocks: that of the wall, for people, and one that is never set.
struct Moment {
  absl::Time wall = absl::Now();
  SteadyTime steady = std::chrono::steady_clock::now();

  absl::Time WallAt(SteadyTime other) const { return wall + absl::FromChrono(other - steady); }
  double SecondsSince() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - steady).count();
  }
};

// The time from when a stage was first entered to when it was last left. Others lie within where
// stages take turns.
struct StageExtent {
  SteadyTime first, last;
};
inline void Extend(std::optional<StageExtent>& extent, const StageExtent& more) {
  extent = extent
               ? StageExtent{std::min(extent->first, more.first), std::max(extent->last, more.last)}
               : more;
}

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
  kArithmetic,
  kEncode,
  kSend
};
inline constexpr std::array<const char*, 11> kStageNames = {
    "",          "queue",   "decode",     "compile", "start", "forward",
    "recompute", "adjoint", "arithmetic", "encode",  "send"};

class StageClock {
 public:
  Stage Enter(Stage stage) {  // returns the one that ends
    const auto now = std::chrono::steady_clock::now();
    seconds_[Index(stage_)] += std::chrono::duration<double>(now - since_).count();
    Extend(extents_[Index(stage_)], {since_, now});
    since_ = now;
    const Stage before = stage_;
    stage_ = stage;
    return before;
  }
  double seconds(Stage stage) const { return seconds_[Index(stage)]; }
  // None: it was not left yet.
  const std::optional<StageExtent>& extent(Stage stage) const { return extents_[Index(stage)]; }
  SteadyTime since() const { return since_; }  // the last change of stage

 private:
  static size_t Index(Stage stage) { return static_cast<size_t>(stage); }
  std::array<double, kStageNames.size()> seconds_{};
  std::array<std::optional<StageExtent>, kStageNames.size()> extents_;
  Stage stage_ = Stage::kNone;
  SteadyTime since_ = std::chrono::steady_clock::now();
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
