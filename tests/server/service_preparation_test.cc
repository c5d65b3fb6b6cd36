// Requests that take long to prepare hold up nobody else, and can be left like any other.
#include <atomic>
#include <thread>

#include "tests/server/largest_program.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

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
