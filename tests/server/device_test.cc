// Where the server runs: the choice of a device, GPU metrics, and the end of one that is lost.
#include "server/service/device.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "server/metrics/gpu_collector.h"
#include "sim/backend/cuda/cuda_device.h"
#include "tests/server/ball_request.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

bool HasGpu() { return sim::cuda::ListCudaDevices().ok(); }

TEST(OpenDevice, AutoRunsOnTheCpuWhereThereIsNoGpuAndSaysWhy) {
  if (HasGpu()) GTEST_SKIP() << "this machine has a GPU";
  config::ServerConfig config;
  config.device = "auto";
  const auto device = service::OpenDevice(config);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->kind, "cpu");
  const std::string why(sim::cuda::ListCudaDevices().status().message());
  EXPECT_NE(device->note.find(why), std::string::npos) << device->note;
  EXPECT_EQ(device->note.rfind("warning", 0) == 0, sim::cuda::IsCudaBuilt()) << device->note;
}

TEST(OpenDevice, CudaRefusesWhereThereIsNoGpuAndSaysWhatWouldBeRight) {
  if (HasGpu()) GTEST_SKIP() << "this machine has a GPU";
  for (const char* flag : {"cuda", "cuda:0", "cuda:3"}) {
    config::ServerConfig config;
    config.device = flag;
    const absl::Status status = service::OpenDevice(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << flag;
    EXPECT_NE(std::string(status.message()).find("--device=cpu"), std::string::npos) << status;
  }
}

// A GPU that answers questions and fails all work.
class LostGpu : public sim::cuda::Device {
 public:
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
      const sim::cuda::GeneratedSource&) override {
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

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t, sim::cuda::MemoryKind) override { return Lose(); }
  void Free(void*, sim::cuda::MemoryKind) override {}

 private:
  sim::cuda::DeviceLimits limits_;
  std::atomic<bool> lost_{false};
};

class LostExecutor : public sim::Executor {
 public:
  explicit LostExecutor(std::shared_ptr<LostGpu> gpu) : gpu_(std::move(gpu)) {}
  std::string_view name() const override { return "cuda"; }
  absl::StatusOr<std::unique_ptr<sim::Run>> Create(sim::Batch, sim::RunOptions) override {
    return gpu_->Lose();
  }

 private:
  std::shared_ptr<LostGpu> gpu_;
};

service::Device DeviceThatGetsLost() {
  const auto gpu = std::make_shared<LostGpu>();
  service::Device device;
  device.kind = "cuda";
  device.name = "a GPU";
  device.memory_bytes = int64_t{1} << 30;
  device.gpus.push_back({0, "GPU-00", "a GPU", gpu});
  device.engine = std::make_shared<const sim::Engine>(std::make_shared<LostExecutor>(gpu));
  return device;
}

TEST(LostDevice, FailsTheWorkAsDeviceLostAndIsSeenInHealthAndMetrics) {
  RunningServer server(service::Server::Create(FreePorts(), DeviceThatGetsLost()));
  EXPECT_FALSE(server.server().HasLostDevice());
  const auto answer = Ask(server, BallRollout(4));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(answer.status).info.reason(), "DEVICE_LOST");
  EXPECT_TRUE(server.server().HasLostDevice());
  const std::map<std::string, double> series = server.Series();
  EXPECT_EQ(series.at(R"(simgrad_cuda_errors_total{kind="device_lost"})"), 1);
  EXPECT_EQ(series.at(R"(simgrad_cuda_errors_total{kind="other"})"), 0);
  EXPECT_EQ(series.at(R"(simgrad_gpu_memory_used_bytes{gpu="0"})"), 5);
  EXPECT_EQ(series.at(R"(simgrad_gpu_memory_total_bytes{gpu="0"})"), 80);
  EXPECT_EQ(series.at(R"(simgrad_gpu_busy_seconds_total{gpu="0"})"), 1.5);
}

}  // namespace
}  // namespace simgrad::server
