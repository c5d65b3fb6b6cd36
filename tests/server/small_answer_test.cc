// Answers of small work: one message where it is quick, no silence where it is not.
#include <future>

#include "sim/backend/host_executor.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

// Begins no work before it is let.
class HeldExecutor : public sim::Executor {
 public:
  explicit HeldExecutor(std::shared_future<void> let) : let_(std::move(let)) {}
  std::string_view name() const override { return "cpu"; }
  absl::StatusOr<std::unique_ptr<sim::Run>> Create(sim::Batch batch,
                                                   sim::RunOptions options) override {
    let_.wait();
    return cpu_->Create(std::move(batch), std::move(options));
  }

 private:
  const std::shared_future<void> let_;
  const std::unique_ptr<sim::Executor> cpu_ = sim::MakeHostExecutor();
};

TEST(SmallAnswer, IsOneMessage) {
  RunningServer server;
  // The clock of a busy machine may cut one in two, not every one.
  size_t fewest = 100;
  for (int i = 0; i < 50 && fewest > 1; ++i) {
    grpc::ClientContext context;
    auto reader = server.stub().Gradient(&context, BallGradient(20, 4));
    size_t messages = 0;
    int parts = 0;
    for (v1::GradientResponse message; reader->Read(&message); ++messages) {
      parts += message.parts_size();
    }
    ASSERT_TRUE(reader->Finish().ok());
    EXPECT_GE(parts, 4);  // header, diagnostics, reverse pass, result
    fewest = std::min(fewest, messages);
  }
  EXPECT_EQ(fewest, 1u);
}

TEST(SmallAnswer, ThatIsLongInComingIsBegunMeanwhile) {
  std::promise<void> let;
  service::Device device;
  device.kind = "cpu";
  device.memory_bytes = int64_t{1} << 30;
  device.engine =
      std::make_shared<const sim::Engine>(std::make_shared<HeldExecutor>(let.get_future().share()));
  RunningServer server(service::Server::Create(FreePorts(), std::move(device)));
  grpc::ClientContext context;
  // For a server that keeps the header until something else is sent, which is never.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  auto reader = server.Rollout(&context, BallRollout(1000, 4));
  v1::RolloutPart part;
  const bool begun = reader->Read(&part);
  let.set_value();
  ASSERT_TRUE(begun);
  EXPECT_TRUE(part.has_header());
  while (reader->Read(&part)) {
  }
  EXPECT_TRUE(part.has_result());
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace simgrad::server
