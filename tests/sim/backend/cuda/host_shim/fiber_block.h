// The threads of one block as fibers of the calling host thread.
//
// Between two barriers every thread runs without interruption, in an order that a seed shuffles: so
// what depends on the order of threads gives other bits, unless a barrier decides it.
// Errors: INTERNAL where threads of a block wait at different barriers, or some have ended while
//   others wait.
// Threads: an object belongs to one host thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>

#include "absl/status/status.h"

namespace simgrad::tests {

class FiberBlock {
 public:
  FiberBlock();
  ~FiberBlock();

  // Calls body(thread) for each of `threads` threads. `resume(thread)` is called before a thread
  // starts or goes on.
  absl::Status Run(int threads, std::mt19937_64& order, const std::function<void(int)>& resume,
                   const std::function<void(int)>& body);
  // Called by a thread of the block that runs; see cuda_host_shim.h.
  static int Barrier(const char* file, int line, int value);

 private:
  struct Fiber;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace simgrad::tests
