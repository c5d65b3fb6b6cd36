// The server side of one streaming RPC: an outbox that is a gRPC write reactor.
//
// One write is in flight at a time; what comes meanwhile waits in order, step diagnostics coalesced
// and progress replaced, at most StreamingCall::max_queued_bytes() and one part, and leaves
// together as far as it fits a message. A reader that takes no message for
// StreamingCall::slow_reader_timeout() is given up: its call fails, and is cut off where even that
// is not taken within as long again. Threads: as Outbox; gRPC's callbacks come one at a time, looks
// from OpenStreams.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/conversion/diagnostics_blocks.h"
#include "server/service/open_streams.h"
#include "server/service/outbox.h"
#include "server/service/streaming_call.h"
#include "server/service/wire_message.h"

namespace simgrad::server::service {

inline void Fill(v1::StreamHeader&& from, auto& to) { *to.mutable_header() = std::move(from); }
inline void Fill(v1::DiagnosticsBlock&& from, auto& to) {
  *to.mutable_diagnostics() = std::move(from);
}
inline void Fill(v1::TrajectoryChunk&& from, auto& to) {
  *to.mutable_trajectory() = std::move(from);
}
inline void Fill(v1::Progress&& from, auto& to) { *to.mutable_progress() = std::move(from); }
inline void Fill(v1::TensorPiece&& from, auto& to) { *to.mutable_piece() = std::move(from); }
inline void Fill(v1::BackwardBlock&& from, v1::GradientPart& to) {
  *to.mutable_backward() = std::move(from);
}
inline void Fill(v1::BackwardBlock&&, v1::RolloutPart&) {}
inline void Fill(v1::RolloutResult&& from, v1::RolloutPart& to) {
  *to.mutable_result() = std::move(from);
}
inline void Fill(v1::RolloutResult&&, v1::GradientPart&) {}
inline void Fill(v1::GradientResult&& from, v1::GradientPart& to) {
  *to.mutable_result() = std::move(from);
}
inline void Fill(v1::GradientResult&&, v1::RolloutPart&) {}

template <class Response>
class StreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public Outbox,
                            public OpenStream {
 public:
  // Lives in `streams` until its RPC is done. `call` learns of cancellation and of the end.
  static StreamReactor* Open(std::shared_ptr<StreamingCall> call,
                             grpc::CallbackServerContext* context, OpenStreams& streams) {
    auto reactor = std::make_shared<StreamReactor>(std::move(call), context, streams);
    streams.Add(reactor);
    return reactor.get();
  }
  // Use Open.
  StreamReactor(std::shared_ptr<StreamingCall> call, grpc::CallbackServerContext* context,
                OpenStreams& streams)
      : call_(std::move(call)), context_(context), streams_(streams) {}

  bool Send(Part part) override {
    std::unique_lock lock(mutex_);
    if (!AwaitRoom(lock)) return false;
    FlushDiagnostics();
    if (IsResult(part)) progress_.reset();  // nothing comes after the result
    Queue(std::move(part));
    WriteNext(std::move(lock));
    return true;
  }

  bool SendDiagnostics(const sim::StepDiagnostics& diagnostics) override {
    std::unique_lock lock(mutex_);
    if (!AwaitRoom(lock)) return false;
    if (!diagnostics_) {
      diagnostics_.emplace(call_->column_names(), call_->max_payload_bytes());
    }
    diagnostics_->Append(diagnostics);
    WriteNext(std::move(lock));
    return true;
  }

  void SendProgress(v1::Progress progress) override {
    std::unique_lock lock(mutex_);
    if (progress_ && writing_) call_->CountDropped(metrics::Dropped::kSampled, 1);
    progress_ = std::move(progress);
    WriteNext(std::move(lock));
  }

  void Finish(grpc::Status status) override {
    std::unique_lock lock(mutex_);
    final_ = given_up_ ? *given_up_ : std::move(status);
    progress_.reset();
    WriteNext(std::move(lock));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) call_->OnCancel();
    std::unique_lock lock(mutex_);
    writing_ = false;
    broken_ = broken_ || !ok;
    room_.notify_all();
    WriteNext(std::move(lock));
  }

  void OnCancel() override { call_->OnCancel(); }

  void OnDone() override {
    const std::shared_ptr<StreamingCall> call = call_;
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    streams_.Remove(this);  // which may delete it
    call->OnDone();
  }

  // What was held back long enough leaves; who takes nothing is given up.
  void Look(Clock::time_point now) override {
    std::unique_lock lock(mutex_);
    if (done_) return;
    if (!writing_ || now - waits_since_ < call_->slow_reader_timeout()) {
      return WriteNext(std::move(lock));
    }
    waits_since_ = now;
    if (given_up_) return context_->TryCancel();
    given_up_ = call_->GiveUp();
    CountLost(static_cast<int64_t>(waiting_.size()) + (diagnostics_ ? 1 : 0));
    DropWaiting();
    if (final_) final_ = given_up_;
    room_.notify_all();
  }

 private:
  struct Queued {
    Part part;
    int64_t bytes = 0;
  };

  static bool IsResult(const Part& part) {
    return std::holds_alternative<v1::RolloutResult>(part) ||
           std::holds_alternative<v1::GradientResult>(part);
  }

  void Queue(Part part) {
    // Its tag and length in the message around it.
    constexpr int64_t kFraming = 16;
    const int64_t bytes =
        kFraming +
        std::visit([](const auto& p) { return static_cast<int64_t>(p.ByteSizeLong()); }, part);
    queued_bytes_ += bytes;
    waiting_.push_back({std::move(part), bytes});
  }

  void DropWaiting() {
    waiting_.clear();
    queued_bytes_ = 0;
    diagnostics_.reset();
    progress_.reset();
  }

  void CountLost(int64_t parts) { call_->CountDropped(metrics::Dropped::kSlowClient, parts); }

  void FlushDiagnostics() {
    if (!diagnostics_) return;
    for (v1::DiagnosticsBlock& block : diagnostics_->Take()) Queue(std::move(block));
  }

  bool HasRoom() const {
    if (call_->is_tiny()) return true;  // of no more than was admitted
    const int64_t pending = diagnostics_ ? diagnostics_->bytes() : 0;
    return queued_bytes_ + pending < call_->max_queued_bytes();
  }

  // Waits until the reader has taken enough. False: the call is to end before that.
  bool AwaitRoom(std::unique_lock<std::mutex>& lock) {
    // Writes wake it; cancelling, the deadline and the end of a drain are looked for.
    constexpr std::chrono::milliseconds kLook{20};
    bool waited = false;
    while (!broken_ && !given_up_ && !HasRoom()) {
      if (!call_->Ends().ok()) return false;
      waited = true;
      room_.wait_for(lock, kLook);
    }
    if (given_up_) CountLost(1);
    return !given_up_ && !(waited && broken_);
  }

  // Small work is held back, so that all of its answer leaves together, but not for long: the next
  // part, or a look, finds that it is due.
  bool HoldsBack() {
    constexpr std::chrono::milliseconds kLong{50};
    const auto now = Clock::now();
    if (!held_since_) held_since_ = now;
    return call_->is_small() && HasRoom() && now - *held_since_ < kLong - OpenStreams::kInterval;
  }

  // Moves what comes next into `response_`, as much as fits one message. False: there is nothing.
  bool TakeNext() {
    response_.Clear();
    for (int64_t bytes = 0;;) {
      if (waiting_.empty()) FlushDiagnostics();
      if (waiting_.empty() && progress_) {
        Queue(std::move(*progress_));
        progress_.reset();
      }
      if (waiting_.empty()) return response_.parts_size() > 0;
      Queued& next = waiting_.front();
      bytes += next.bytes;
      if (response_.parts_size() > 0 && bytes > call_->max_payload_bytes()) return true;
      std::visit([this](auto&& part) { Fill(std::move(part), *response_.add_parts()); },
                 std::move(next.part));
      queued_bytes_ -= next.bytes;
      waiting_.pop_front();
    }
  }

  // Starts the next write, or ends the stream where nothing is left.
  void WriteNext(std::unique_lock<std::mutex> lock) {
    if (writing_ || finished_) return;
    if (broken_) {
      DropWaiting();
    } else if (!final_ && (IsEmpty() || HoldsBack())) {
      return;
    }
    if (!TakeNext()) {
      if (!final_) return;
      finished_ = true;
      const grpc::Status status = *final_;
      lock.unlock();
      // May end in OnDone on another thread before it returns: nothing is touched after it.
      grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(status);
      return;
    }
    buffer_ = Serialized(response_);
    writing_ = true;
    waits_since_ = Clock::now();
    if (!first_written_) {
      first_written_ = true;
      call_->OnFirstMessage();
    }
    if (!final_ || !IsEmpty()) {
      lock.unlock();
      this->StartWrite(&buffer_);
      return;
    }
    finished_ = true;
    const grpc::Status status = *final_;
    lock.unlock();
    this->StartWriteAndFinish(&buffer_, grpc::WriteOptions(), status);
  }

  bool IsEmpty() const {
    return waiting_.empty() && !progress_ && (!diagnostics_ || diagnostics_->empty());
  }

  const std::shared_ptr<StreamingCall> call_;
  grpc::CallbackServerContext* const context_;  // until OnDone
  OpenStreams& streams_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::deque<Queued> waiting_;
  int64_t queued_bytes_ = 0;                                   // of `waiting_`
  std::optional<conversion::PendingDiagnostics> diagnostics_;  // after what waits
  std::optional<v1::Progress> progress_;
  std::optional<grpc::Status> final_;
  std::optional<grpc::Status> given_up_;  // with it the call ends, whatever else was to come
  Response response_;
  grpc::ByteBuffer buffer_;  // `response_`, on its way
  std::optional<Clock::time_point> held_since_;
  Clock::time_point waits_since_;  // the write that is in flight
  bool writing_ = false;
  bool first_written_ = false;
  bool finished_ = false;
  bool broken_ = false;
  bool done_ = false;
};

}  // namespace simgrad::server::service
