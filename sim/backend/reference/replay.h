// Runs one instance again, forward and in reverse, with states kept for the reversal.
//
// Cost: twice the forward run and the reversal; 2 sqrt(steps) states. Threads: those of the instance.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/backend/reference/instance_run.h"

namespace simgrad::sim::reference {

// Called at a step, before something runs. Null: not called.
using StepCallback = std::function<void(int64_t)>;

// An instance that has started.
struct Replay {
  const Batch& batch;
  InstanceRun& instance;
  // Before step t runs for the first time, and before Finish with t = steps.
  StepCallback before_step;
  // Before step t is reversed, before StartAdjoint with t = steps, and before FinishAdjoint with -1.
  StepCallback before_reverse;
  // Before a step runs once more, without being counted.
  std::function<void()> before_again;
  // Whether to go on. Null: always.
  std::function<bool()> goes_on;

  // Every step, then Finish.
  void Forward();
  // The same, then in reverse: down to step `last`, and to the end if that is 0.
  void Reverse(int64_t last, double seed_scale);

 private:
  void Step(int64_t t);
  bool GoesOn() const { return goes_on == nullptr || goes_on(); }
};

}  // namespace simgrad::sim::reference
