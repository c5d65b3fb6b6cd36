// A GPU that answers questions and is lost by the first work it is given.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/service/device.h"
#include "sim/backend/cuda/device.h"
#include "sim/backend/cuda/run/cuda_executor.h"

namespace simgrad::server {

enum class FirstWork {
  kLosesTheDevice,
  kNeverReturns,  // as a call into a driver that hangs; the second loses the device
};

class LostGpu : public sim::cuda::Device {
 public:
  explicit LostGpu(FirstWork first = FirstWork::kLosesTheDevice)
      : hangs_(first == FirstWork::kNeverReturns) {}
  const sim::cuda::DeviceLimits& limits() const override { return limits_; }
  sim::cuda::DeviceUse Use() const override {
    sim::cuda::DeviceUse use;
    use.memory_used_bytes = 5;
    use.memory_total_bytes = 80;
    use.busy_seconds = 1.5;
    use.lost_errors = lost_ ? 1 : 0;
    use.lost = lost_;
    return use;
  }
  absl::StatusOr<std::unique_ptr<sim::cuda::Stream>> OpenStream() override { return Lose(); }
  absl::StatusOr<std::unique_ptr<sim::cuda::Event>> MakeEvent() override { return Lose(); }
  absl::StatusOr<std::shared_ptr<const sim::cuda::Module>> Load(
      const sim::cuda::GeneratedSource& source, sim::cuda::KernelChoice) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      texts_.push_back(source.text);
    }
    if (hangs_.exchange(false)) Hang();
    return Lose();
  }
  absl::StatusOr<int64_t> ResidentBlocks(const sim::cuda::Module&, const std::string&, int,
                                         int64_t) override {
    return Lose();
  }
  absl::Status Lose() {
    lost_ = true;
    return sim::cuda::DeviceLostError("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS");
  }
  // Of the modules that were asked for.
  std::vector<std::string> texts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return texts_;
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t, sim::cuda::MemoryKind) override { return Lose(); }
  void Free(void*, sim::cuda::MemoryKind) override {}

 private:
  [[noreturn]] void Hang() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::condition_variable never;
    for (;;) never.wait(lock);
  }

  sim::cuda::DeviceLimits limits_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> hangs_;
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

// The executor is the real one.
inline service::Device DeviceOf(std::shared_ptr<sim::cuda::Device> gpu) {
  service::Device device;
  device.kind = "cuda";
  device.name = "a GPU";
  device.threads = 2;
  device.memory_bytes = int64_t{1} << 30;
  device.formats = service::FormatExecutions();
  device.engine = std::make_shared<const sim::Engine>(
      std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(gpu)));
  device.gpus.push_back({0, "GPU-00", "a GPU", std::move(gpu)});
  return device;
}

}  // namespace simgrad::server
