// The threads of a run: all work is done, by as many as the system gives.
#include "sim/backend/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace simgrad::sim {
namespace {

int64_t SumBy(WorkerPool& pool) {
  std::atomic<int64_t> sum{0};
  pool.ParallelFor(1000, [&](int, int64_t i) { sum += i; });
  return sum;
}

TEST(WorkerPool, DoesAllWork) {
  for (const int threads : {1, 2, 7}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    EXPECT_EQ(SumBy(pool), 499500);
  }
}

#if !defined(__SANITIZE_ADDRESS__)
// Runs in a process of its own. A thread takes addresses for its stack.
void WorkWithFewAddresses() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  constexpr rlim_t kMore = rlim_t{256} << 20;
  const rlim_t most = static_cast<rlim_t>(pages) * 4096 + kMore;
  const rlimit limit = {most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  WorkerPool pool(2000);
  if (pool.threads() >= 2000) std::_Exit(3);
  std::_Exit(SumBy(pool) == 499500 ? 0 : 4);
}

TEST(WorkerPool, HasFewerThreadsWhereTheSystemHasNoMore) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(WorkWithFewAddresses(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace simgrad::sim
