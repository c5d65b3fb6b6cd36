// Requests that take long to prepare hold up nobody else, and can be left like any other.
#include <atomic>
#include <thread>

#include "server/conversion/program_to_proto.h"
#include "sim/program/builder.h"
#include "sim/program/verify.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

// Close to the limit of operations, half of them in a loop; no two `kind`s are one cache entry.
v1::Program LargestProgram(double kind) {
  const int64_t half = sim::ProgramLimits().max_operations / 2 - 200;
  sim::Builder b("largest");
  const sim::Var x = b.State("x", {});
  const sim::Var k = b.Param("k", {});
  sim::WhileOptions options;
  options.site = "shrink";
  options.max_iter = 2;
  const sim::LoopResult loop = b.While(
      options, {x}, {},
      [&](const sim::Vars& in, const sim::Vars&) {
        sim::Var tested = in[0];
        for (int64_t i = 0; i < half; ++i) tested = tested * k;
        return sim::LoopTest{tested, b.Literal(0.5), std::nullopt, {tested}};
      },
      [&](const sim::Vars& in, const sim::Vars& exports, const sim::Vars&) {
        sim::Var next = exports[0];
        for (int64_t i = 0; i < half; ++i) next = next + in[0];
        return sim::Vars{next + b.Literal(kind)};
      });
  b.SetNext({loop.carried[0]});
  b.AddObjective("last", nullptr,
                 [](const sim::Vars& states, const sim::Vars&) { return states[0]; });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  return conversion::ProgramToProto(*program);
}

v1::GradientRequest LargestGradient(double kind) {
  v1::GradientRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = LargestProgram(kind);
  spec->set_steps(1);
  spec->set_objective("last");
  AddTensor(spec->mutable_initial(), "x", {0.25}, {});
  AddTensor(spec->mutable_params(), "k", {1.0}, {});
  return request;
}

// Several callers that each send a largest program of their own.
class Crowd {
 public:
  Crowd(RunningServer& server, int callers) {
    for (int i = 0; i < callers; ++i) {
      callers_.emplace_back([this, &server, request = LargestGradient(i + 1.0)] {
        const auto answer = Ask(server, request);
        EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
        ++answered_;
      });
    }
  }
  ~Crowd() {
    for (std::thread& caller : callers_) caller.join();
  }
  int answered() const { return answered_; }

 private:
  std::atomic<int> answered_{0};
  std::vector<std::thread> callers_;
};

constexpr int kCallers = 5;

bool Ping(RunningServer& server) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  return server.stub().GetServerInfo(&context, {}, &info).ok();
}

TEST(ServicePreparation, TheLargestProgramsDoNotHoldUpOtherCallers) {
  RunningServer server;
  const scheduling::WorkQueue& preparation = server.server().preparation();
  Crowd crowd(server, kCallers);
  ASSERT_TRUE(Eventually([&] { return preparation.running() == 2 && preparation.waiting() > 1; }));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Ping(server));
    EXPECT_TRUE(Ask(server, BallRollout(3)).status.ok());
  }
  // All of these overtook: most of the large ones are still to be prepared.
  EXPECT_GT(preparation.running() + preparation.waiting(), 0);
  EXPECT_LT(crowd.answered(), kCallers);
}

TEST(ServicePreparation, ARequestThatIsLeftBeforeItWasPreparedIsDroppedAndCounted) {
  RunningServer server;
  const scheduling::WorkQueue& preparation = server.server().preparation();
  Crowd crowd(server, kCallers);
  ASSERT_TRUE(Eventually([&] { return preparation.running() == 2 && preparation.waiting() > 1; }));
  grpc::ClientContext context;
  const v1::GradientRequest request = LargestGradient(0.5);
  auto reader = server.Gradient(&context, request);
  const std::string started =
      R"(grpc_server_started_total{grpc_method="Gradient",grpc_service="simgrad.v1.Simgrad",)"
      R"(grpc_type="server_stream"})";
  ASSERT_TRUE(Eventually([&] { return server.Series().at(started) == kCallers + 1; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const std::string lost = R"(simgrad_rpc_cancelled_total{grpc_method="Gradient",phase="queued"})";
  EXPECT_TRUE(Eventually([&] { return server.Series().at(lost) == 1; }));
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
