// The threads of one run.
//
// Threads: ParallelFor is called from one thread at a time, and that thread works too. Every thread
//   computes in the float environment of precision/float_environment.h. ParallelFor rethrows an
//   exception that leaves `work`.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace simgrad::sim {

class WorkerPool {
 public:
  // `threads` >= 1, the caller's among them: the most that there are. Where the system has fewer, so has the pool.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls work(worker, i) for every i < n; `worker` < threads() names the thread.
  void ParallelFor(int64_t n, const std::function<void(int worker, int64_t i)>& work);

 private:
  void Serve(int worker);
  void Drain(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int, int64_t)>* work_ = nullptr;
  int64_t next_ = 0;
  int64_t end_ = 0;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool closing_ = false;
  std::exception_ptr failure_;
};

}  // namespace simgrad::sim
