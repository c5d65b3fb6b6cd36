// Requests that take long to prepare hold up nobody else, and can be left like any other.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/server/blocker.h"
#include "tests/server/largest_program.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

// Every worker that prepares requests, kept until this ends.
class BusyPreparation {
 public:
  explicit BusyPreparation(RunningServer& server) {
    scheduling::WorkQueue& preparation = server.server().preparation();
    for (int i = 0; i < preparation.workers(); ++i) {
      blockers_.push_back(std::make_unique<scheduling::Blocker>(preparation));
    }
  }

 private:
  std::vector<std::unique_ptr<scheduling::Blocker>> blockers_;
};

// Of a world that adds a number made of k to its state.
v1::GradientRequest GradientOfSum(const std::function<sim::Var(sim::Builder&, sim::Var)>& made) {
  sim::Builder b("sum");
  const sim::Var x = b.State("x", {});
  const sim::Var k = b.Param("k", {});
  b.SetNext({x + made(b, k)});
  b.AddObjective("last", nullptr,
                 [](const sim::Vars& states, const sim::Vars&) { return states[0]; });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  v1::GradientRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
  spec->set_steps(1);
  spec->set_objective("last");
  AddTensor(spec->mutable_initial(), "x", {0.25}, {});
  AddTensor(spec->mutable_params(), "k", {1e-3}, {});
  return request;
}

// Of the largest of so many numbers, all of them k.
v1::GradientRequest GradientOfAnExtreme(int64_t elements) {
  return GradientOfSum([&](sim::Builder& b, sim::Var k) {
    return b.Reduce(sim::OpCode::kReduceMax, b.Broadcast(k, {elements}, {}));
  });
}

bool Ping(RunningServer& server) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  return server.stub().GetServerInfo(&context, {}, &info).ok();
}

TEST(ServicePreparation, TheLargestProgramsDoNotHoldUpOtherCallers) {
  RunningServer server;
  const scheduling::WorkQueue& preparation = server.server().preparation();
  auto busy = std::make_unique<BusyPreparation>(server);
  grpc::ClientContext context;
  auto large = server.Gradient(&context, LargestGradient(1));
  ASSERT_TRUE(Eventually([&] { return preparation.waiting() == 1; }));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Ping(server));
    EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
  }
  // All of these overtook it.
  EXPECT_EQ(preparation.waiting(), 1);
  busy.reset();
  v1::GradientPart part;
  while (large->Read(&part)) {
  }
  const grpc::Status status = large->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(part.has_result());
}

// A gradient of an extreme writes a number for each element of what it is of: few operations and few
// bytes, and yet no quick preparation.
TEST(ServicePreparation, AFewOperationsOnManyElementsAreForAWorker) {
  RunningServer server;
  const scheduling::WorkQueue& preparation = server.server().preparation();
  auto busy = std::make_unique<BusyPreparation>(server);
  grpc::ClientContext few_context, many_context, world_context;
  auto few = server.Gradient(&few_context, GradientOfAnExtreme(1 << 10));
  v1::GradientPart part;
  while (few->Read(&part)) {
  }
  const grpc::Status quick = few->Finish();
  EXPECT_TRUE(quick.ok()) << quick.error_message();
  auto many = server.Gradient(&many_context, GradientOfAnExtreme(1 << 20));
  EXPECT_TRUE(Eventually([&] { return preparation.waiting() == 1; }));
  v1::RolloutRequest balls = BallRollout(1);
  (*balls.mutable_spec()->mutable_world()->mutable_config())["elements"].set_number(1 << 20);
  auto world = server.stub().Rollout(&world_context, balls);
  EXPECT_TRUE(Eventually([&] { return preparation.waiting() == 2; }));
  busy.reset();
  while (many->Read(&part)) {
  }
  const grpc::Status status = many->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  world_context.TryCancel();
}

// Compiled code has room for a group of instances: two of 512 x 512 numbers take 240 MiB.
TEST(ServicePreparation, FewLargeInstancesReserveWhatCompiledCodeTakesForAGroup) {
  RunningServer server;
  v1::GradientRequest request = GradientOfSum([](sim::Builder& b, sim::Var k) {
    const sim::Var square = b.Broadcast(k, {512, 512}, {});
    return b.Reduce(sim::OpCode::kSum, b.Do(sim::OpCode::kMatmul, {square, square}));
  });
  request.mutable_spec()->set_steps(0);  // nothing runs, but the room is there
  request.mutable_spec()->set_instances(2);
  std::atomic<bool> ended{false};
  int64_t most = 0;
  std::thread watch([&] {
    while (!ended) {
      most = std::max(most, server.server().queue().memory_used_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto answer = Ask(server, request);
  ended = true;
  watch.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_GT(most, int64_t{200} << 20);
}

TEST(ServicePreparation, ARequestThatIsLeftBeforeItWasPreparedIsDroppedAndCounted) {
  RunningServer server;
  const scheduling::WorkQueue& preparation = server.server().preparation();
  const BusyPreparation busy(server);
  grpc::ClientContext context;
  auto reader = server.Gradient(&context, LargestGradient(0.5));
  ASSERT_TRUE(Eventually([&] { return preparation.waiting() == 1; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const std::string lost = R"(simgrad_rpc_cancelled_total{grpc_method="Gradient",phase="queued"})";
  EXPECT_TRUE(Eventually([&] { return server.Series().at(lost) == 1; }));
  EXPECT_EQ(preparation.waiting(), 0);
}

TEST(ServicePreparation, ADescriptionOfALargeProgramComesTheSameWay) {
  RunningServer server;
  grpc::ClientContext context;
  v1::DescribeProgramRequest request;
  *request.mutable_world()->mutable_program() = LargestProgram(3);
  v1::DescribeProgramResponse response;
  const grpc::Status status = server.stub().DescribeProgram(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.source().SerializeAsString(), request.world().program().SerializeAsString());
  // One that is wrong is refused the same way, with its field.
  grpc::ClientContext bad_context;
  request.mutable_world()->mutable_program()->mutable_step()->mutable_ops(0)->set_code("?");
  const grpc::Status bad = server.stub().DescribeProgram(&bad_context, request, &response);
  EXPECT_EQ(DetailsOf(bad).bad_request.field_violations(0).field(),
            "world.program.step.ops[0].code");
}

}  // namespace
}  // namespace simgrad::server
