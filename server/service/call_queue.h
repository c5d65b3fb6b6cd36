// gRPC's completion queue of the calls, and the threads that empty it.
//
// What gRPC completes is handled on the thread that read it from the network: with the callback
// API every message that is read changes threads once more, which costs as much as a small call.
// Threads: any; Stop from one that is not of the queue.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace simgrad::server::service {

// The receiver of a completion; its address is the tag.
class Completion {
 public:
  virtual void Complete(bool ok) = 0;

 protected:
  ~Completion() = default;
};

class CallQueue {
 public:
  // Before the server is built.
  explicit CallQueue(grpc::ServerBuilder& builder);
  ~CallQueue() { Stop(); }

  // Once the server is built.
  void Start();
  // Once the server has shut down: waits until nothing uses the queue, then ends its threads. Calls
  // have been cancelled by then; a peer may hold up their ends until its connection is cut, which
  // Server::ShutDown does meanwhile.
  void Stop();

  // A part of the service that may ask gRPC for one more completion.
  class Use {
   public:
    explicit Use(CallQueue& queue) : queue_(queue) { queue_.CountUse(1); }
    ~Use() { queue_.CountUse(-1); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    CallQueue& queue_;
  };

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

 private:
  void Work();
  void CountUse(int64_t more);

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
  std::mutex mutex_;
  std::condition_variable unused_;
  int64_t uses_ = 0;
};

}  // namespace simgrad::server::service
