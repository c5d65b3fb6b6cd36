// Waits for what another thread or process does.
#pragma once

#include <chrono>
#include <thread>

namespace simgrad {

// Polls until it holds, and leaves the processor to what it waits for; false after far longer than
// it can take.
template <class Condition>
bool Eventually(const Condition& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace simgrad
