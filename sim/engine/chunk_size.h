// How many steps run between two looks at the observer.
//
// Chosen sizes follow the clock, between a tenth and a half of the time within which a cancelled
// request should end. No bit depends on them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/engine.h"
#include "sim/program/step_work.h"

namespace simgrad::sim {

// Element-operations of a step of all instances, without those inside its loops; at least 1.
inline double StepWorkOf(const Batch& batch) {
  const Program& program = batch.program->program;
  const double own = static_cast<double>(OwnWork(program, program.step));
  return std::max(1.0, own * static_cast<double>(std::max<int64_t>(batch.instances, 1)));
}

class ChunkSize {
 public:
  explicit ChunkSize(const Work& work)
      : chosen_(work.chunk_steps <= 0),
        most_(MostStepsOfAChunk(work)),
        steps_(chosen_ ? std::min(FirstOf(work.batch), most_) : most_) {}
  int64_t steps() const { return steps_; }
  // Goes on where another run of the same work came to.
  void StartAt(int64_t steps) {
    if (chosen_) steps_ = std::clamp<int64_t>(steps, 1, most_);
  }
  void Took(int64_t steps, double seconds) {
    constexpr double kShort = 0.010;
    constexpr double kLong = 0.050;
    if (!chosen_) return;
    // The next one may be about as long as kShort.
    const int64_t growth = seconds < kShort / 4 ? 4 : 2;
    if (steps == steps_ && seconds < kShort) steps_ = std::min(steps_ * growth, most_);
    if (seconds > kLong) steps_ = std::max<int64_t>(steps_ / 2, 1);
  }

 private:
  // Few enough to be short, whatever the operations are.
  static int64_t FirstOf(const Batch& batch) {
    constexpr double kShortWork = 1 << 20;  // element-operations
    constexpr double kMost = 8;
    return static_cast<int64_t>(std::clamp(kShortWork / StepWorkOf(batch), 1.0, kMost));
  }
  bool chosen_;
  int64_t most_;
  int64_t steps_;
};

}  // namespace simgrad::sim
