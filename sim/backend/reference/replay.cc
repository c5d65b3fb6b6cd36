#include "sim/backend/reference/replay.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace simgrad::sim::reference {
namespace {

void Call(const StepCallback& callback, int64_t t) {
  if (callback != nullptr) callback(t);
}

}  // namespace

void Replay::Step(int64_t t) {
  Call(before_step, t);
  instance.Step(t, {});
}

void Replay::Forward() {
  for (int64_t t = 0; t < batch.steps; ++t) Step(t);
  Call(before_step, batch.steps);
  instance.Finish();
}

// States are kept at every sqrt(steps), and between two of these.
void Replay::Reverse(int64_t last, double seed_scale) {
  const int64_t interval =
      1 + static_cast<int64_t>(std::sqrt(static_cast<double>(std::max<int64_t>(batch.steps, 0))));
  std::vector<InstanceState> marks;  // at the multiples of the interval
  for (int64_t t = 0; t < batch.steps; ++t) {
    if (t % interval == 0) marks.push_back(instance.state());
    Step(t);
  }
  Call(before_step, batch.steps);
  instance.Finish();
  Call(before_reverse, batch.steps);
  instance.StartAdjoint(seed_scale);
  for (int64_t end = batch.steps; end > last && GoesOn();) {
    if (before_again != nullptr) before_again();
    const int64_t first = (end - 1) / interval * interval;
    instance.set_state(marks[static_cast<size_t>(first / interval)]);
    std::vector<InstanceState> states;
    for (int64_t t = first; t < end; ++t) {
      if (t > first) instance.Step(t - 1, {});
      states.push_back(instance.state());
    }
    for (int64_t t = end; t-- > std::max(first, last) && GoesOn();) {
      instance.set_state(std::move(states[static_cast<size_t>(t - first)]));
      AdjointChunk chunk;
      chunk.steps.resize(1);
      Call(before_reverse, t);
      instance.AdjointSteps(t, 1, chunk);
    }
    end = first;
  }
  if (last != 0 || !GoesOn()) return;
  Call(before_reverse, -1);
  instance.FinishAdjoint();
}

}  // namespace simgrad::sim::reference
