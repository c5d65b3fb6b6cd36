// Streams and events of the shim: work is done as late as the waits allow.
//
// What a stream is given stays undone until somebody waits for it: the host for the stream or an
// event, or another stream, when it comes to its WaitFor. So a wait that is missing is never made
// up for by luck. One stream may be told to hurry instead, and does what it is given at once: then
// what it should have waited for is not there.
// Errors: those of the work, from the first failure on at every wait. Threads: all streams and
// events that wait for each other belong to one host thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "sim/backend/cuda/device.h"
#include "tests/sim/backend/cuda/host_shim/shim_memory.h"

namespace simgrad::tests {

// Numbers the waits for events of a device, and leaves one out: a fault that must be caught.
class Waits {
 public:
  explicit Waits(int64_t skipped) : skipped_(skipped) {}
  bool Skips() { return count_++ == skipped_; }
  int64_t count() const { return count_; }

 private:
  int64_t skipped_;
  int64_t count_ = 0;
};

// What a stream was given and has not done.
class LateWork {
 public:
  using Item = std::function<absl::Status()>;
  void Give(Item item) {
    ++given_;
    items_.push_back(std::move(item));
  }
  int64_t given() const { return given_; }
  absl::Status DoUntil(int64_t count);

 private:
  std::deque<Item> items_;
  int64_t given_ = 0, done_ = 0;
  absl::Status failed_;
};

class LateEvent : public sim::cuda::Event {
 public:
  explicit LateEvent(std::shared_ptr<Waits> waits) : waits_(std::move(waits)) {}
  absl::Status Wait() override;
  // The point in a stream's work; null where it was not recorded.
  std::shared_ptr<LateWork> work;
  int64_t place = 0;

 private:
  std::shared_ptr<Waits> waits_;
};

enum class Pace : uint8_t { kLate, kHurried };

// Copies and order; launches are the device's.
class LateStream : public sim::cuda::Stream {
 public:
  LateStream(std::shared_ptr<ShimMemory> memory, std::shared_ptr<Waits> waits, Pace pace)
      : memory_(std::move(memory)),
        waits_(std::move(waits)),
        work_(std::make_shared<LateWork>()),
        pace_(pace) {}
  absl::Status ToDevice(void* to, const void* from, int64_t bytes) override;
  absl::Status FromPinned(void* to, const void* from, int64_t bytes) override;
  absl::Status ToHost(void* to, const void* from, int64_t bytes) override;
  absl::Status ToPinned(void* to, const void* from, int64_t bytes) override;
  absl::Status OnDevice(void* to, const void* from, int64_t bytes) override;
  absl::Status Fill(void* to, uint8_t byte, int64_t bytes) override;
  absl::Status Record(sim::cuda::Event& event) override;
  absl::Status WaitFor(sim::cuda::Event& event) override;
  absl::Status Wait() override { return work_->DoUntil(work_->given()); }

 protected:
  ShimMemory& memory() { return *memory_; }
  absl::Status Later(LateWork::Item item) {
    work_->Give(std::move(item));
    return pace_ == Pace::kHurried ? Wait() : absl::OkStatus();
  }

 private:
  std::shared_ptr<ShimMemory> memory_;
  std::shared_ptr<Waits> waits_;
  std::shared_ptr<LateWork> work_;
  Pace pace_;
};

}  // namespace simgrad::tests
