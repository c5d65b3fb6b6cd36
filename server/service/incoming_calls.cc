#include "server/service/incoming_calls.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/service/error_status.h"
#include "server/service/request_log.h"
#include "server/service/rpc_scope.h"

namespace simgrad::server::service {
namespace {

// The answer of a unary method, through the stream that the call is.
class UnaryAnswer final : public grpc::ServerCallbackUnary {
 public:
  explicit UnaryAnswer(grpc::ServerGenericBidiReactor& call) : call_(call) {}
  void Bind(grpc::ServerUnaryReactor* reactor) { BindReactor(reactor); }
  grpc::ByteBuffer* response() { return &response_; }

  void Finish(grpc::Status status) override {
    if (!status.ok()) return call_.Finish(std::move(status));
    call_.StartWriteAndFinish(&response_, grpc::WriteOptions(), std::move(status));
  }
  void SendInitialMetadata() override { call_.StartSendInitialMetadata(); }

 private:
  grpc::internal::ServerReactor* reactor() override { return nullptr; }
  void CallOnDone() override {}

  grpc::ServerGenericBidiReactor& call_;
  grpc::ByteBuffer response_;
};

// The answers of a streaming method.
class StreamAnswer final : public grpc::ServerCallbackWriter<grpc::ByteBuffer> {
 public:
  explicit StreamAnswer(grpc::ServerGenericBidiReactor& call) : call_(call) {}
  void Bind(grpc::ServerWriteReactor<grpc::ByteBuffer>* reactor) { BindReactor(reactor); }

  void Finish(grpc::Status status) override { call_.Finish(std::move(status)); }
  void SendInitialMetadata() override { call_.StartSendInitialMetadata(); }
  void Write(const grpc::ByteBuffer* message, grpc::WriteOptions options) override {
    call_.StartWrite(message, options);
  }
  void WriteAndFinish(const grpc::ByteBuffer* message, grpc::WriteOptions options,
                      grpc::Status status) override {
    call_.StartWriteAndFinish(message, options, std::move(status));
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return nullptr; }
  void CallOnDone() override {}

  grpc::ServerGenericBidiReactor& call_;
};

// Two lives: first an upload, then what gRPC would be to the service's reactor.
class IncomingCall final : public grpc::ServerGenericBidiReactor,
                           public Upload,
                           public std::enable_shared_from_this<IncomingCall> {
 public:
  IncomingCall(const IncomingCalls::Method& method, grpc::CallbackServerContext* context,
               Uploads& uploads, metrics::ServerMetrics& metrics)
      : method_(method),
        context_(context),
        uploads_(uploads),
        metrics_(metrics),
        unary_(*this),
        stream_(*this) {}

  void Read() {
    self_ = shared_from_this();
    peer_ = context_->peer();
    uploads_.Begin(self_, peer_, Uploads::Clock::now());
    StartRead(&request_);
  }
  // Instead of Read: the service looks at the call, not at its request.
  void AnswerUnread() {
    self_ = shared_from_this();
    Serve();
  }

  void Refuse(const scheduling::Refusal& refusal) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { writer_->OnWriteDone(ok); }
  void OnSendInitialMetadataDone(bool ok) override {
    writer_ ? writer_->OnSendInitialMetadataDone(ok) : reactor_->OnSendInitialMetadataDone(ok);
  }
  void OnCancel() override;
  void OnDone() override;

 private:
  // The end of a unary call takes no other thread; that of a stream may wait for a lock.
  bool InternalInlineable() override { return method_.unary != nullptr; }

  enum class State : uint8_t { kUploading, kServing, kEnded };
  // Whether it was the first to decide what becomes of the upload.
  bool Becomes(State state);
  void Serve();
  void Served();

  const IncomingCalls::Method& method_;
  grpc::CallbackServerContext* const context_;
  Uploads& uploads_;
  metrics::ServerMetrics& metrics_;
  std::shared_ptr<IncomingCall> self_;  // until OnDone
  std::string peer_;
  grpc::ByteBuffer request_;
  UnaryAnswer unary_;
  StreamAnswer stream_;
  // One of both once the service has the call.
  grpc::ServerUnaryReactor* reactor_ = nullptr;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* writer_ = nullptr;
  std::mutex mutex_;
  State state_ = State::kUploading;
  bool served_ = false;  // the service's reactor is there
  bool cancelled_ = false;
};

bool IncomingCall::Becomes(State state) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kUploading) return false;
  state_ = state;
  return true;
}

void IncomingCall::Refuse(const scheduling::Refusal& refusal) {
  if (!Becomes(State::kEnded)) return;
  RequestRecord record;
  record.request_id = NewRequestId();
  record.method = method_.name;
  const grpc::Status wire = ToGrpcStatus(refusal, record.request_id);
  record.outcome = CodeLabel(wire.error_code());
  record.message = refusal.message;
  metrics_.queue_rejected.at(RefusalLabel(refusal.reason)).Increment();
  if (method_.service == IncomingCalls::Of::kSimgrad) {
    RpcScope(metrics_, method_.name).End(record.outcome);
    LogRequest(record);
  }
  Finish(wire);
}

void IncomingCall::OnReadDone(bool ok) {
  uploads_.End(this, peer_, ok ? static_cast<int64_t>(request_.Length()) : 0);
  const bool left = context_->IsCancelled();
  if (!Becomes(left ? State::kEnded : State::kServing)) return;
  if (left) return Finish(grpc::Status::CANCELLED);
  Serve();
}

void IncomingCall::Serve() {
  if (method_.unary) {
    reactor_ = method_.unary(context_, &request_, unary_.response());
    unary_.Bind(reactor_);
  } else {
    writer_ = method_.stream(context_, &request_);
    stream_.Bind(writer_);
  }
  Served();
}

void IncomingCall::Served() {
  {
    std::lock_guard lock(mutex_);
    served_ = true;
    if (!cancelled_) return;
  }
  writer_ ? writer_->OnCancel() : reactor_->OnCancel();
}

void IncomingCall::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (!served_) return;
  }
  writer_ ? writer_->OnCancel() : reactor_->OnCancel();
}

void IncomingCall::OnDone() {
  const std::shared_ptr<IncomingCall> self = std::move(self_);
  if (writer_) writer_->OnDone();
  if (reactor_) reactor_->OnDone();
}

class UnknownMethod final : public grpc::ServerGenericBidiReactor {
 public:
  UnknownMethod() { Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")); }
  void OnDone() override { delete this; }
};

}  // namespace

// gRPC lists a service only if one of its methods is registered: this one has no name and answers
// UNIMPLEMENTED. Of a stream nothing is read before its reactor asks.
SimgradName::SimgradName() {
  const auto* service = v1::GetServerInfoRequest::descriptor()->file()->service(0);
  using Method = grpc::internal::RpcServiceMethod;
  AddMethod(new Method("/simgrad.v1.Simgrad/", Method::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(service->method_count(),
                        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                            [](grpc::CallbackServerContext*) { return new UnknownMethod(); }));
}

IncomingCalls::IncomingCalls(SimgradService& service, HealthService& health, Uploads& uploads,
                             metrics::ServerMetrics& metrics, TokenGate* token_gate)
    : uploads_(uploads), metrics_(metrics), token_gate_(token_gate) {
  const auto add = [this](absl::string_view of, Method method) {
    methods_[absl::StrCat("/", of, "/", method.name)] = std::move(method);
  };
  const auto unary = [&](const char* name, auto method) {
    add(v1::Simgrad::service_full_name(),
        {name, Of::kSimgrad, std::bind_front(method, &service), nullptr});
  };
  const auto stream = [&](const char* name, auto method) {
    add(v1::Simgrad::service_full_name(),
        {name, Of::kSimgrad, nullptr, std::bind_front(method, &service)});
  };
  unary("GetServerInfo", &SimgradService::GetServerInfo);
  unary("ListWorlds", &SimgradService::ListWorlds);
  unary("DescribeProgram", &SimgradService::DescribeProgram);
  stream("Rollout", &SimgradService::Rollout);
  stream("Gradient", &SimgradService::Gradient);
  constexpr absl::string_view kHealthName = "grpc.health.v1.Health";
  add(kHealthName,
      {"Check", Of::kHealth, std::bind_front(&HealthService::Check, &health), nullptr});
  add(kHealthName,
      {"Watch", Of::kHealth, nullptr, std::bind_front(&HealthService::Watch, &health)});
}

bool IncomingCalls::HasToken(const grpc::CallbackServerContext& context) const {
  if (token_gate_ == nullptr) return true;
  const auto entry = context.client_metadata().find("authorization");
  const bool none = entry == context.client_metadata().end();
  return token_gate_->Check(none ? "" : std::string(entry->second.data(), entry->second.size()))
      .ok();
}

grpc::ServerGenericBidiReactor* IncomingCalls::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const auto method = methods_.find(context->method());
  if (method == methods_.end()) return new UnknownMethod();
  const auto call = std::make_shared<IncomingCall>(method->second, context, uploads_, metrics_);
  const bool read = method->second.service == Of::kHealth || HasToken(*context);
  read ? call->Read() : call->AnswerUnread();
  return call.get();
}

}  // namespace simgrad::server::service
