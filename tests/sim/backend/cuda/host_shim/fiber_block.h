// The threads of one block as fibers of the calling host thread.
//
// Between two barriers every thread runs without interruption, in an order that a seed shuffles: so
// what depends on the order of threads gives other bits, unless a barrier decides it.
// The 32 threads of a warp, fewer in the last, meet without the others of the block.
// Errors: INTERNAL where threads of a block wait at different barriers, threads of a warp at
//   different places of theirs, or some have ended while others wait.
// Threads: an object belongs to one host thread at a time.
#pragma once

#include <cstddef>
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
  // For whom a thread waits, and what it is answered: the or of the block's values, or the sum, ...
  // of its warp's. As cuda_host_shim.h numbers them.
  enum Operation : int { kBlockBarrier, kWarpAdd, kWarpMin, kWarpMax, kWarpOr };
  // Called by a thread of the block that runs; see cuda_host_shim.h.
  static unsigned Await(const char* file, int line, int operation, unsigned value);

 private:
  struct Fiber;
  struct State;
  static void Leave(State& state, Fiber& fiber);
  static void Enter(State& state, Fiber& fiber);
  static void Live();
  absl::Status Meet(size_t first, size_t last);
  absl::Status MeetAll(size_t threads);
  std::unique_ptr<State> state_;
};

}  // namespace simgrad::tests
