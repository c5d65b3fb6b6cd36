#include "sim/backend/worker_pool.h"

#include <system_error>
#include <utility>

#include "precision/float_environment.h"

namespace simgrad::sim {

WorkerPool::WorkerPool(int threads) {
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { Serve(worker); });
    }
  } catch (const std::system_error&) {
    // No more threads are to be had; fewer give the same bits.
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::Drain(int worker) {
  const precision::ScopedFloatEnvironment environment;
  while (true) {
    int64_t i = 0;
    {
      const std::lock_guard lock(mutex_);
      if (next_ >= end_) return;
      i = next_++;
    }
    try {
      (*work_)(worker, i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = end_;
    }
  }
}

void WorkerPool::Serve(int worker) {
  uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return closing_ || generation_ != seen; });
      if (closing_) return;
      seen = generation_;
    }
    Drain(worker);
    {
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }
}

void WorkerPool::ParallelFor(int64_t n, const std::function<void(int, int64_t)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    next_ = 0;
    end_ = n;
    busy_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  Drain(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return busy_ == 0; });
  work_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace simgrad::sim
