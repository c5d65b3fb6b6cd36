// A watch of compilations with a limit, for the tests of what is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "sim/backend/compile_watch.h"

namespace simgrad::tests {

// Has memory for so much at a time, and counts what is held of it.
class Purse final : public sim::CompileWatch {
 public:
  sim::HeldMemory ForCompile(int64_t bytes) override { return Take(bytes, compile_bytes); }
  sim::HeldMemory ForCache(int64_t bytes) override { return Take(bytes, cache_bytes); }
  void Compiled(sim::CompileQuality quality, double seconds) override {
    ++compiled[static_cast<size_t>(quality)];
    EXPECT_GT(seconds, 0);
  }
  void Refused(const std::string&, const std::string&) override {}
  std::atomic<int64_t> compile_bytes = int64_t{1} << 40, cache_bytes = int64_t{1} << 40;
  std::atomic<int64_t> held = 0;
  std::atomic<int> compiled[2] = {0, 0};

 private:
  sim::HeldMemory Take(int64_t bytes, int64_t limit) {
    if (bytes > limit) return nullptr;
    held += bytes;
    return sim::HeldMemory(new int64_t(bytes), [this](const int64_t* taken) {
      held -= *taken;
      delete taken;
    });
  }
};

}  // namespace simgrad::tests
