// Where the server runs: the choice of a device, GPU metrics, and the end of one that is lost.
#include "server/service/device.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "server/metrics/gpu_collector.h"
#include "sim/backend/cuda/driver/cuda_device.h"
#include "tests/server/ball_request.h"
#include "tests/server/lost_gpu.h"
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

TEST(LostDevice, FailsTheWorkAsDeviceLostAndIsSeenInHealthAndMetrics) {
  RunningServer server(service::Server::Create(FreePorts(), DeviceOf(std::make_shared<LostGpu>())));
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

TEST(MemoryBudget, AServerOnAGpuTakesNoMoreThanTheHostCanHold) {
  service::Device device = DeviceOf(std::make_shared<LostGpu>());
  device.memory_bytes = int64_t{1} << 50;
  const int64_t budget = service::DefaultMemoryBudget(device, service::HostMemoryBytes());
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 0;
  RunningServer server(service::Server::Create(config, std::move(device)));
  EXPECT_LT(budget, service::HostMemoryBytes());
  EXPECT_EQ(server.Series().at("simgrad_memory_limit_bytes"), static_cast<double>(budget));
}

v1::DescribeProgramResponse Described(RunningServer& server, const v1::RolloutSpec& spec,
                                      bool adjoint) {
  v1::DescribeProgramRequest request;
  *request.mutable_world() = spec.world();
  *request.mutable_policy() = spec.policy();
  request.set_objective(spec.objective());
  request.set_adjoint(adjoint);
  for (const v1::NamedTensor& control : spec.controls()) {
    request.mutable_cuda()->add_per_step(control.name());
  }
  v1::DescribeProgramResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.stub().DescribeProgram(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

TEST(CudaText, WhatIsDescribedIsWhatIsCompiled) {
  const auto gpu = std::make_shared<LostGpu>();
  RunningServer server(service::Server::Create(FreePorts(), DeviceOf(gpu)));
  v1::RolloutRequest rollout = BallRollout(4);
  rollout.mutable_spec()->set_objective("final_penetration");
  AddTensor(rollout.mutable_spec()->mutable_controls(), "u", {0, 1, 2, 3}, {4, 1});
  rollout.mutable_spec()->mutable_controls(0)->set_per_step(true);
  const v1::DescribeProgramResponse forward = Described(server, rollout.spec(), false);
  const v1::DescribeProgramResponse both = Described(server, rollout.spec(), true);
  v1::GradientRequest gradient;
  *gradient.mutable_spec() = rollout.spec();
  for (const v1::InputSchema& input : both.inputs()) {
    if (!input.differentiable()) continue;
    v1::InputName* const name = gradient.add_wrt();
    name->set_kind(input.kind());
    name->set_name(input.name());
  }
  Ask(server, rollout);
  Ask(server, gradient);
  EXPECT_EQ(gpu->texts(), (std::vector{forward.cuda().text(), both.cuda().text()}));
  EXPECT_EQ(forward.cuda().mapping(), v1::CUDA_MAPPING_THREAD_PER_INSTANCE);
  EXPECT_NE(forward.cuda().text().find("simgrad_forward("), std::string::npos);
  EXPECT_EQ(forward.cuda().text().find("simgrad_adjoint("), std::string::npos);
  EXPECT_NE(both.cuda().text().find("simgrad_adjoint("), std::string::npos);
}

}  // namespace
}  // namespace simgrad::server
