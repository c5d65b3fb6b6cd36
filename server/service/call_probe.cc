#include "server/service/call_probe.h"

#include <grpcpp/support/channel_arguments.h>

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/service/health_call.h"

namespace simgrad::server::service {

absl::Status CallProbe::Try(absl::Duration limit) {
  std::shared_ptr<grpc::Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    if (server_ == nullptr) return absl::OkStatus();
    channel = server_->InProcessChannel(grpc::ChannelArguments());
    ++calls_;
  }
  const HealthAnswer answer =
      AskHealth(channel, std::chrono::system_clock::now() + absl::ToChronoMicroseconds(limit));
  channel.reset();
  {
    const std::lock_guard lock(mutex_);
    --calls_;
    ended_.notify_all();
  }
  if (answer.status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("not answered within ", absl::FormatDuration(limit)));
}

void CallProbe::Close() {
  const std::lock_guard lock(mutex_);
  server_ = nullptr;
}

void CallProbe::Join() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return calls_ == 0; });
}

}  // namespace simgrad::server::service
