// The memory of gRPC itself: the last line, behind the server's own limits, which lawful load never
// reaches.
#include <atomic>
#include <future>

#include "server/service/upload_limits.h"
#include "tests/server/blocker.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

constexpr int64_t kMiB = 1 << 20;

// The server's own limit of uploads stands far below: twice as much may come between two looks.
TEST(GrpcMemory, StandsBehindTheServersOwnLimits) {
  for (const int64_t memory : {64 * kMiB, 1024 * kMiB, 65'536 * kMiB}) {
    for (const int64_t request : {config::kSmallestMessageLimit, 64 * kMiB, 1024 * kMiB}) {
      config::ServerConfig config;
      config.max_request_bytes = request;
      const int64_t own = service::UploadLimitsOf(config, memory).bytes;
      EXPECT_GE(own, 2 * request);
      const int64_t grpc = service::GrpcMemoryOf(config, memory);
      EXPECT_GE(grpc, 2 * own);
      EXPECT_GE(grpc, memory);
      EXPECT_GE(grpc, 512 * kMiB);
    }
  }
}

// Requests of so many bytes each, at once, while nobody reads what has come of them.
class Unread {
 public:
  Unread(RunningServer& server, int count, int64_t bytes) {
    scheduling::WorkQueue& preparation = server.server().preparation();
    for (int i = 0; i < preparation.workers(); ++i) {
      readers_.push_back(std::make_unique<scheduling::Blocker>(preparation));
    }
    // Wrong, as who has read it says.
    v1::RolloutRequest request = BallRollout(1);
    request.mutable_spec()->mutable_params(0)->mutable_tensor()->set_inline_(
        std::string(static_cast<size_t>(bytes), '\0'));
    for (int i = 0; i < count; ++i) {
      asked_.push_back(std::async(std::launch::async, [this, &server, request] {
        grpc::Status status = Ask(server, request).status;
        ++ended_;
        return status;
      }));
    }
  }
  int ended() const { return ended_; }
  // Has them read, and waits for their ends.
  std::vector<grpc::Status> Read() {
    readers_.clear();
    std::vector<grpc::Status> ends;
    for (std::future<grpc::Status>& one : asked_) ends.push_back(one.get());
    return ends;
  }

 private:
  std::atomic<int> ended_{0};
  std::vector<std::unique_ptr<scheduling::Blocker>> readers_;
  std::vector<std::future<grpc::Status>> asked_;
};

bool WasRead(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
         DetailsOf(status).info.reason() == "INVALID_FIELD";
}

// Nobody else ends any of them, as the server itself would take 512 MiB.
TEST(GrpcMemory, EndsCallsWhereUnreadRequestsHoldMore) {
  config::ServerConfig config = FreePorts();
  config.grpc_memory_bytes = 8 * kMiB;
  RunningServer server(config);
  Unread unread(server, 8, 4 * kMiB);
  EXPECT_TRUE(Eventually([&] { return unread.ended() > 0; }));
  int cut = 0;
  for (const grpc::Status& status : unread.Read()) {
    if (WasRead(status)) continue;
    ++cut;
    // gRPC ends calls, and connections on which none is left; it knows no reason of ours.
    const bool is_cut = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                        status.error_code() == grpc::StatusCode::UNAVAILABLE;
    EXPECT_TRUE(is_cut) << status.error_code() << " " << status.error_message();
    EXPECT_TRUE(status.error_details().empty());
  }
  EXPECT_GE(cut, 1);
  EXPECT_TRUE(Eventually([&] { return Ask(server, BallRollout(3)).status.ok(); }));
}

// All of what the server itself allows is there at once.
TEST(GrpcMemory, IsNotReachedByWhatTheServerAllows) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 512 * kMiB;
  RunningServer server(config);
  constexpr int kRequests = 8;
  const int64_t own = service::UploadLimitsOf(config, config.memory_limit_bytes).bytes;
  Unread unread(server, kRequests, own / kRequests - kMiB);
  EXPECT_TRUE(Eventually([&] { return server.server().preparation().waiting() == kRequests; }));
  EXPECT_EQ(unread.ended(), 0);
  for (const grpc::Status& status : unread.Read()) {
    EXPECT_TRUE(WasRead(status)) << status.error_code() << " " << status.error_message();
  }
}

}  // namespace
}  // namespace simgrad::server
