// Processor time, which other work on the machine does not lengthen.
#pragma once

#include <chrono>
#include <ctime>

namespace simgrad {

using Milliseconds = std::chrono::duration<double, std::milli>;

// Of this thread.
inline Milliseconds ThreadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace simgrad
