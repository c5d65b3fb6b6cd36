// The whole server on a GPU, with the host compiler standing in for it: its answers have the bits
// of a server on the CPU, and say what the device does.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/lost_gpu.h"
#include "tests/server/running_server.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

namespace simgrad::server {
namespace {

v1::GradientRequest Gradient() {
  v1::GradientRequest request = BallGradient(20, 40);
  request.mutable_spec()->mutable_policy()->set_preset("bf16_safe");
  request.mutable_spec()->add_record("y");
  return request;
}

TEST(CudaService, AnAnswerHasTheBitsOfTheCpu) {
  RunningServer gpu(
      service::Server::Create(FreePorts(), DeviceOf(tests::MakeHostShimDevice({.seed = 4}))));
  RunningServer cpu;
  const auto on_gpu = Ask(gpu, Gradient());
  const auto on_cpu = Ask(cpu, Gradient());
  ASSERT_TRUE(on_gpu.status.ok()) << on_gpu.status.error_message();
  ASSERT_TRUE(on_cpu.status.ok()) << on_cpu.status.error_message();
  EXPECT_EQ(on_gpu.header().device(), "cuda");
  EXPECT_EQ(on_cpu.header().device(), "cpu");
  EXPECT_EQ(on_gpu.trajectory("y"), on_cpu.trajectory("y"));
  v1::GradientResult of_gpu = on_gpu.result();
  v1::GradientResult of_cpu = on_cpu.result();
  ASSERT_GT(of_gpu.gradients_size(), 0);
  // All but what it took.
  of_gpu.mutable_rollout()->clear_phase_seconds();
  of_cpu.mutable_rollout()->clear_phase_seconds();
  EXPECT_EQ(of_gpu.SerializeAsString(), of_cpu.SerializeAsString());
}

TEST(CudaService, InfoAndAnswerSayWhichFormatsAreNative) {
  RunningServer server(service::Server::Create(FreePorts(), DeviceOf(tests::MakeHostShimDevice())));
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).kind(), "cuda");
  const auto& formats = info.devices(0).formats();
  EXPECT_EQ((std::map<std::string, std::string>(formats.begin(), formats.end())),
            (std::map<std::string, std::string>{{"f64", "native"},
                                                {"f32", "native"},
                                                {"bf16", "emulated"},
                                                {"f16", "emulated"},
                                                {"e4m3", "emulated"},
                                                {"e5m2", "emulated"}}));
  const auto answer = Ask(server, Gradient());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  int emulated = 0;
  for (const v1::ResolvedRole& role : answer.header().program().policy().roles()) {
    EXPECT_EQ(role.execution(), formats.at(role.setting().format())) << role.role();
    emulated += role.execution() == "emulated" ? 1 : 0;
  }
  EXPECT_GT(emulated, 0);
}

std::vector<v1::GradientResult> Vjp(RunningServer& server, const v1::VjpRequest& request) {
  std::vector<v1::GradientResult> results;
  grpc::ClientContext context;
  PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, request));
  for (v1::GradientPart part; reader.Read(&part);) {
    if (part.has_result()) results.push_back(part.result());
  }
  const grpc::Status status = reader.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return results;
}

TEST(CudaService, AKeptRolloutIsReversedWithoutAStepForward) {
  const config::ServerConfig config = FreePorts();
  const auto gpu = tests::MakeHostShimDevice();
  RunningServer server(service::Server::Create(config, DeviceOf(gpu)));
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = Gradient().spec();
  rollout.mutable_keep();
  const auto kept = Ask(server, rollout);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  ASSERT_TRUE(kept.result().has_kept());
  const auto whole = Ask(server, Gradient());
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const std::string forward = "simgrad_steps_total{direction=\"forward\"}";
  const double before = server.Series().at(forward);
  v1::VjpRequest vjp;
  vjp.set_handle(kept.result().kept().handle());
  for (int k = 0; k < 2; ++k) {
    const auto results = Vjp(server, vjp);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_TRUE(results[0].reused());
    ASSERT_EQ(results[0].gradients_size(), whole.result().gradients_size());
    for (int i = 0; i < results[0].gradients_size(); ++i) {
      EXPECT_EQ(results[0].gradients(i).SerializeAsString(),
                whole.result().gradients(i).SerializeAsString());
    }
  }
  EXPECT_EQ(server.Series().at(forward), before);
  // The handle holds memory of the host, which counts, and none of the device.
  EXPECT_EQ(gpu->Use().memory_used_bytes, 0);
  EXPECT_GT(gpu->Use().pinned_bytes, 0);
  EXPECT_GT(server.Series().at("simgrad_tape_bytes{tier=\"host\"}"),
            static_cast<double>(gpu->Use().pinned_bytes));
}

TEST(CudaService, ARolloutThatDoesNotFitIsNotKeptAndHoldsNothing) {
  config::ServerConfig config = FreePorts();
  config.kept_run_bytes = 1;
  const auto gpu = tests::MakeHostShimDevice();
  RunningServer server(service::Server::Create(config, DeviceOf(gpu)), config);
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = Gradient().spec();
  rollout.mutable_keep();
  const auto answer = Ask(server, rollout);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_FALSE(answer.result().has_kept());
  EXPECT_TRUE(Eventually([&] { return gpu->Use().pinned_bytes == 0; }));
}

}  // namespace
}  // namespace simgrad::server
