// The whole server on a GPU, with the host compiler standing in for it: its answers have the bits
// of a server on the CPU, and say what the device does.
#include <gtest/gtest.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace simgrad::server
