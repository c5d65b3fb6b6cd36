// The CPU's executor, with batches of two sizes that hang and heed no cancellation.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "server/service/device.h"
#include "sim/backend/host_executor.h"

namespace simgrad::server {

class HangingExecutor final : public sim::Executor {
 public:
  static constexpr int64_t kHangs = 13;   // instances of a batch that hangs
  static constexpr int64_t kWedges = 17;  // after this one everything hangs

  // `tell`: called when a batch begins to hang.
  explicit HangingExecutor(std::function<void()> tell = [] {}) : tell_(std::move(tell)) {}

  std::string_view name() const override { return "hanging"; }
  absl::StatusOr<std::unique_ptr<sim::Run>> Create(sim::Batch batch,
                                                   sim::RunOptions options) override {
    {
      std::unique_lock lock(mutex_);
      if (batch.instances == kWedges) wedged_ = true;
      if (!released_ && (wedged_ || batch.instances == kHangs)) {
        tell_();
        over_.wait(lock, [this] { return released_; });
      }
    }
    return executor_->Create(std::move(batch), std::move(options));
  }

  // What hangs goes on, and nothing hangs any more.
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    over_.notify_all();
  }

 private:
  const std::function<void()> tell_;
  const std::unique_ptr<sim::Executor> executor_ = sim::MakeHostExecutor();
  std::mutex mutex_;
  std::condition_variable over_;
  bool wedged_ = false;
  bool released_ = false;
};

inline service::Device DeviceOf(std::shared_ptr<HangingExecutor> executor) {
  service::Device device;
  device.kind = "cpu";
  device.name = "a CPU that hangs";
  device.threads = 2;
  device.memory_bytes = int64_t{1} << 30;
  device.formats = service::FormatExecutions();
  device.engine = std::make_shared<const sim::Engine>(std::move(executor));
  return device;
}

}  // namespace simgrad::server
