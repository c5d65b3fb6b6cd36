// Remembers that the caller has asked a run to stop.
//
// Some calls of a run cannot return that they were stopped (State, SaveState, ...). Their caller
// asks the latch afterwards. Once the caller of the run has answered yes, it is not asked again.
// Threads: any.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "sim/work_meter.h"

namespace simgrad::sim {

class StopLatch {
 public:
  explicit StopLatch(WorkMeter::StopCallback stop)
      : stop_(std::move(stop)), stopped_(std::make_shared<std::atomic<bool>>(false)) {}

  bool stopped() const { return *stopped_; }
  // The callback that the run asks; empty if the caller's is. It may outlive the latch.
  WorkMeter::StopCallback Callback() const {
    if (!stop_) return {};
    return [stop = stop_, stopped = stopped_] {
      if (!*stopped && stop()) *stopped = true;
      return stopped->load();
    };
  }

 private:
  WorkMeter::StopCallback stop_;
  std::shared_ptr<std::atomic<bool>> stopped_;
};

}  // namespace simgrad::sim
