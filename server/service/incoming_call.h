// One call on the port, from its first bytes to its end.
//
// A call is first an upload, then the answer of the service that it is handed to. A call without a
// token, or one that would only be told that the queue is full, is answered before its request is
// read. If its caller left meanwhile, it ends without the service, its metrics and its log line.
// Threads: those of CallQueue; a service answers on any.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/scheduling/scheduler.h"
#include "server/service/call_queue.h"
#include "server/service/connections.h"
#include "server/service/held_refusals.h"
#include "server/service/received_content.h"
#include "server/service/request_log.h"
#include "server/service/rpc_scope.h"
#include "server/service/service_call.h"
#include "server/service/token_gate.h"
#include "server/service/uploads.h"
#include "server/tracing/span_exporter.h"

namespace simgrad::server::service {

struct IncomingMethod {
  enum class Of : uint8_t { kSimgrad, kHealth, kNone };
  std::string name;
  Of service = Of::kSimgrad;  // others need no token, and have no metrics and no log
  bool is_work = false;       // has to wait in the queue
  // The function that answers a call; one of the two is set.
  std::function<void(const ServiceCall& call, UnaryAnswer& answer)> unary;
  std::function<void(const ServiceCall& call, StreamAnswer& answer)> stream;
  // The most bytes of content that the messages of one call bring, for a method that takes a stream
  // of messages. 0: the method takes one message.
  int64_t most_content = 0;
};

// The state that the calls of a port share; all of it outlives them.
struct IncomingShared {
  Uploads* uploads = nullptr;
  HeldRefusals* held = nullptr;
  Connections* connections = nullptr;
  metrics::ServerMetrics* metrics = nullptr;
  scheduling::Scheduler* scheduler = nullptr;
  TokenGate* token_gate = nullptr;         // null: no call needs a token
  tracing::SpanExporter* spans = nullptr;  // null: no traces
};

class IncomingCall final : public Upload,
                           public HeldRefusal,
                           public UnaryAnswer,
                           public StreamAnswer,
                           public std::enable_shared_from_this<IncomingCall> {
 public:
  // Called when a call has come: returns its method, found by its path, and lets the next call
  // wait for its turn.
  using Accept = std::function<const IncomingMethod*(const std::string& path)>;
  IncomingCall(const IncomingShared& shared, const Accept& accept, CallQueue& queue);

  // The parts that gRPC fills in and tells. From then on the call owns itself.
  grpc::GenericServerContext& context() { return context_; }
  grpc::GenericServerAsyncReaderWriter& stream() { return stream_; }
  Completion* Await();

  // Upload: ends the call unless its request is complete.
  void Refuse(const scheduling::Refusal& refusal) override;
  // HeldRefusal:
  void Tell() override;

  // UnaryAnswer:
  void OnCancel(std::function<void()> left) override;
  void Finish(const grpc::Status& status, const grpc::ByteBuffer& response) override;
  // StreamAnswer:
  void SetEvents(StreamEvents* events) override { events_ = events; }
  void Write(const grpc::ByteBuffer& message) override;
  void WriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) override;
  void Finish(const grpc::Status& status) override;
  void Cancel() override;

 private:
  // Tells a member of the call, which lives on until that has returned.
  class Told final : public Completion {
   public:
    using Member = void (IncomingCall::*)(bool ok);
    Told(IncomingCall* call, Member member) : call_(call), member_(member) {}
    void Complete(bool ok) override {
      (call_->*member_)(ok);
      call_->Release();
    }

   private:
    IncomingCall* const call_;
    const Member member_;
  };
  enum class State : uint8_t { kUploading, kServing, kEnded };

  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnEnded(bool ok);
  void Release();

  // Leaves kUploading for `state`. False: kUploading was left before; nothing changes.
  bool Becomes(State state);
  void Read();
  // Takes a message of a stream that has come. Returns whether it awaits the next one.
  bool ReadsOn();
  void Serve();
  // Refuses a call whose request is not read, as the queue is full. False: it is not refused.
  bool RefuseUnread();
  void EndRefused(const scheduling::Refusal& refusal);

  const IncomingShared& shared_;
  const Accept& accept_;
  // Set until gRPC has told all that it has to tell of this call.
  std::shared_ptr<IncomingCall> self_;
  std::optional<CallQueue::Use> use_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Told accepted_{this, &IncomingCall::OnAccepted};
  Told read_{this, &IncomingCall::OnRead};
  Told written_{this, &IncomingCall::OnWritten};
  Told finished_{this, &IncomingCall::OnFinished};
  Told ended_{this, &IncomingCall::OnEnded};
  std::atomic<int> pending_{0};  // what gRPC has to tell still
  const IncomingMethod* method_ = nullptr;
  std::string peer_;
  absl::StatusOr<std::shared_ptr<scheduling::Caller>> caller_;
  grpc::ByteBuffer request_;
  std::optional<ReceivedContent> content_;
  StreamEvents* events_ = nullptr;
  std::optional<RpcScope> refused_;
  scheduling::Refusal refusal_;  // that is to be told
  std::atomic<bool> told_{false};
  std::atomic<bool> answered_{false};  // something of the answer was sent
  std::atomic<bool> cut_off_{false};
  bool answers_ = false;  // the write that ends the call has begun
  std::mutex mutex_;
  State state_ = State::kUploading;
  bool served_ = false;   // the service has the call
  bool is_held_ = false;  // `refusal_` is there
  bool cancelled_ = false;
  std::function<void()> left_;
};

}  // namespace simgrad::server::service
