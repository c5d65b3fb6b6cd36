#include "server/service/incoming_call.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <utility>

#include "server/scheduling/steady_time.h"
#include "server/service/call_deadline.h"
#include "server/service/caller_identity.h"
#include "server/service/error_status.h"
#include "server/service/refusal_count.h"
#include "server/service/request_spans.h"

namespace simgrad::server::service {

IncomingCall::IncomingCall(const IncomingShared& shared, const Accept& accept, CallQueue& queue)
    : shared_(shared), accept_(accept), use_(std::in_place, queue) {}

Completion* IncomingCall::Await() {
  self_ = shared_from_this();
  pending_ = 3;  // that it came, its answer, its end
  context_.AsyncNotifyWhenDone(&ended_);
  return &accepted_;
}

void IncomingCall::OnAccepted(bool ok) {
  if (!ok) {
    pending_ -= 2;  // the server stops: nothing else comes
    return;
  }
  method_ = accept_(context_.method());
  peer_ = context_.peer();
  const bool is_first = shared_.connections->CallBegan(peer_);
  const bool has_caller = method_->service == IncomingMethod::Of::kSimgrad;
  if (has_caller) {
    caller_ = CallerOf(context_, shared_.token_gate, shared_.scheduler->callers());
    const bool is_unread = !caller_.ok() || RefuseUnread();
    if (is_unread) shared_.uploads->Unread(peer_);
    if (!caller_.ok()) return Serve();
    if (is_unread) return;
  }
  if (method_->most_content > 0) content_.emplace(method_->most_content);
  shared_.uploads->Begin(self_, peer_,
                         {.of_caller = has_caller,
                          .first_of_connection = is_first,
                          .most_content = method_->most_content},
                         Uploads::Clock::now());
  Read();
}

void IncomingCall::Read() {
  ++pending_;
  stream_.Read(&request_, &read_);
}

bool IncomingCall::ReadsOn() {
  if (!content_->Take(request_)) return false;
  std::lock_guard lock(mutex_);  // so that no read begins once the call is refused
  if (state_ != State::kUploading || cancelled_) return false;
  Read();
  return true;
}

bool IncomingCall::Becomes(State state) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kUploading) return false;
  state_ = state;
  return true;
}

void IncomingCall::OnRead(bool ok) {
  // All messages of a stream are one upload: what came of it counts until the last is here.
  if (content_ && ok && ReadsOn()) return;
  const auto length = static_cast<int64_t>(request_.Length());
  shared_.uploads->End(this, peer_, content_ ? content_->wire_bytes() : ok ? length : 0);
  bool left = !ok && grpc_call_failed_before_recv_message(context_.c_call()) != 0;
  {
    std::lock_guard lock(mutex_);
    left = left || cancelled_;
  }
  if (!Becomes(left ? State::kEnded : State::kServing)) return;
  if (left) return Finish(grpc::Status::CANCELLED);
  Serve();
}

void IncomingCall::Serve() {
  const ServiceCall call{context_, caller_, request_, content_ ? &*content_ : nullptr};
  if (method_->unary) return method_->unary(call, *this);
  method_->stream(call, *this);
  {
    std::lock_guard lock(mutex_);
    served_ = true;
    if (!cancelled_) return;
  }
  events_->OnCancel();
}

// ---- Refusals ----

void IncomingCall::Refuse(const scheduling::Refusal& refusal) {
  if (!Becomes(State::kEnded)) return;
  // Calls that need no credentials never queue, so they are not counted there.
  if (method_->service == IncomingMethod::Of::kSimgrad) {
    CountInQueue(*shared_.metrics, refusal.reason);
    refused_.emplace(*shared_.metrics, method_->name);
  }
  EndRefused(refusal);
}

bool IncomingCall::RefuseUnread() {
  if (!method_->is_work) return false;
  const absl::Duration until = DeadlineOf(context_) - SteadyNow();
  scheduling::Caller& caller = **caller_;
  auto refusal = shared_.scheduler->FullFor(caller);
  if (!refusal) return false;
  CountRefusal(*shared_.metrics, refusal->reason, caller.name());
  shared_.metrics->caller(caller.name()).requests.Increment();
  refused_.emplace(*shared_.metrics, method_->name);
  const absl::Duration hold = HeldRefusals::HoldFor(caller.PaceRefusal(SteadyNow()), until);
  // The time that it waits here is waited already.
  refusal->retry_after = std::max(refusal->retry_after - hold, absl::Milliseconds(1));
  bool left = false;
  {
    std::lock_guard lock(mutex_);
    refusal_ = *std::move(refusal);
    is_held_ = true;
    left = cancelled_;
  }
  const auto due = HeldRefusals::Clock::now() + absl::ToChronoNanoseconds(hold);
  if (left || hold <= absl::ZeroDuration() || !shared_.held->Add(self_, due)) Tell();
  return true;
}

void IncomingCall::Tell() {
  if (!told_.exchange(true)) EndRefused(refusal_);
}

void IncomingCall::EndRefused(const scheduling::Refusal& refusal) {
  RequestRecord record;
  record.request_id = NewRequestId();
  record.method = method_->name;
  record.trace_parent = MetadataOf(context_, "traceparent");
  if (caller_.ok()) {
    record.caller = (*caller_)->name();
  } else {
    record.peer = PeerOf(context_);
  }
  bool left = false;
  {
    std::lock_guard lock(mutex_);
    left = cancelled_;
  }
  // A caller that left while its refusal was held was never told, so it does not count as refused.
  const absl::Status gone = absl::CancelledError("the caller cancelled");
  const grpc::Status wire =
      left ? ToGrpcStatus(gone, record.request_id) : ToGrpcStatus(refusal, record.request_id);
  record.outcome = CodeLabel(wire.error_code());
  record.message = left ? std::string(gone.message()) : refusal.message;
  if (refused_) {
    record.began = refused_->began();
    record.total_seconds = refused_->Seconds();
    refused_->End(record.outcome);
    TellOfEnd(record, shared_.spans);
  }
  Finish(wire);
}

// ---- The answer ----

void IncomingCall::Finish(const grpc::Status& status, const grpc::ByteBuffer& response) {
  status.ok() ? WriteAndFinish(response, status) : Finish(status);
}

void IncomingCall::Write(const grpc::ByteBuffer& message) {
  ++pending_;
  stream_.Write(message, &written_);
}

void IncomingCall::WriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) {
  answers_ = true;
  stream_.WriteAndFinish(message, grpc::WriteOptions(), status, &finished_);
}

void IncomingCall::Finish(const grpc::Status& status) { stream_.Finish(status, &finished_); }

void IncomingCall::Cancel() {
  if (!cut_off_.exchange(true)) return context_.TryCancel();
  // gRPC ends no call before the write that it has begun; a peer that takes nothing from its socket
  // holds that up, and every other call of its connection with it.
  shared_.connections->Cut(peer_);
}

void IncomingCall::OnWritten(bool ok) {
  if (ok) answered_ = true;
  events_->OnWriteDone(ok);
}

void IncomingCall::OnFinished(bool ok) {
  if (ok && answers_) answered_ = true;
}

void IncomingCall::OnCancel(std::function<void()> left) {
  {
    std::lock_guard lock(mutex_);
    if (!cancelled_) {
      left_ = std::move(left);
      return;
    }
  }
  left();
}

void IncomingCall::OnEnded(bool) {
  bool is_held = false;
  std::function<void()> left;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = context_.IsCancelled();
    if (!cancelled_) return;
    is_held = is_held_;
    left = std::move(left_);
    if (!served_ && !is_held && !left) return;
  }
  if (left) return left();
  is_held ? Tell() : events_->OnCancel();
}

void IncomingCall::Release() {
  if (--pending_ > 0) return;
  const std::shared_ptr<IncomingCall> self = std::move(self_);
  shared_.connections->CallEnded(peer_, cancelled_ && !answered_, Connections::Clock::now());
  if (events_ != nullptr) events_->OnDone();
  use_.reset();
}

}  // namespace simgrad::server::service
