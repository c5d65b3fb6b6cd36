// Lets a run end inside a step: executors report their work, and now and then the caller is asked.
//
// A step may hold loops of many iterations, so looking between steps is not enough. Cost: an
// addition and a comparison per region that runs; the question every 2^20 element-operations,
// which is some 10 ms. Threads: one meter, one thread; `stop` is asked from all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace simgrad::sim {

// Thrown where a run is asked to end. It never leaves an executor: Run's methods answer CANCELLED,
// after which the run is of no further use.
struct StopRequested {
  static absl::Status Status() { return absl::CancelledError("the run was asked to stop"); }
};

class WorkMeter {
 public:
  // Whether the run should end; empty: it never should.
  using StopCallback = std::function<bool()>;
  WorkMeter() = default;
  explicit WorkMeter(StopCallback stop) : stop_(std::move(stop)) {}

  void Add(int64_t element_operations) {
    done_ += element_operations;
    if (done_ >= kBetweenLooks) Look();
  }

 private:
  static constexpr int64_t kBetweenLooks = int64_t{1} << 20;
  void Look() {
    done_ = 0;
    if (stop_ && stop_()) throw StopRequested();
  }

  StopCallback stop_;
  int64_t done_ = 0;
};

// Runs `work` and says how it ended.
template <class Work>
absl::Status UntilStopped(const Work& work) {
  try {
    work();
  } catch (const StopRequested&) {
    return StopRequested::Status();
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim
