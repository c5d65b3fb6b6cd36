#include "server/service/call_queue.h"

#include <algorithm>

namespace simgrad::server::service {

CallQueue::CallQueue(grpc::ServerBuilder& builder) : queue_(builder.AddCompletionQueue()) {}

// As many threads as gRPC takes for its callbacks: two at least, so that one call that is prepared
// at once does not hold up all others.
void CallQueue::Start() {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2U, 16U);
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

void CallQueue::Stop() {
  if (stopped_) return;
  stopped_ = true;
  if (threads_.empty()) threads_.emplace_back([this] { Work(); });
  {
    std::unique_lock lock(mutex_);
    unused_.wait(lock, [this] { return uses_ == 0; });
  }
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

void CallQueue::CountUse(int64_t more) {
  std::lock_guard lock(mutex_);
  uses_ += more;
  if (uses_ == 0) unused_.notify_all();
}

void CallQueue::Work() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Completion*>(tag)->Complete(ok);
}

}  // namespace simgrad::server::service
