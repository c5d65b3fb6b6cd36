// The server side of one streaming RPC: an outbox that is a gRPC write reactor.
//
// One write is in flight at a time; what comes meanwhile waits in order, step diagnostics coalesced
// and progress replaced, at most StreamingCall::max_queued_bytes() and one message. Deletes itself
// when the RPC is done. Threads: as Outbox; gRPC's callbacks come one at a time.
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
inline void Fill(v1::BackwardBlock&& from, v1::GradientResponse& to) {
  *to.mutable_backward() = std::move(from);
}
inline void Fill(v1::BackwardBlock&&, v1::RolloutResponse&) {}
inline void Fill(v1::RolloutResult&& from, v1::RolloutResponse& to) {
  *to.mutable_result() = std::move(from);
}
inline void Fill(v1::RolloutResult&&, v1::GradientResponse&) {}
inline void Fill(v1::GradientResult&& from, v1::GradientResponse& to) {
  *to.mutable_result() = std::move(from);
}
inline void Fill(v1::GradientResult&&, v1::RolloutResponse&) {}

template <class Response>
class StreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Outbox {
 public:
  // `call` learns of cancellation and of the end.
  explicit StreamReactor(std::shared_ptr<StreamingCall> call) : call_(std::move(call)) {}

  bool Send(Message message) override {
    std::unique_lock lock(mutex_);
    if (!AwaitRoom(lock)) return false;
    FlushDiagnostics();
    Queue(std::move(message));
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
    progress_ = std::move(progress);
    WriteNext(std::move(lock));
  }

  void Finish(grpc::Status status) override {
    std::unique_lock lock(mutex_);
    final_ = std::move(status);
    progress_.reset();  // the answer says it all
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
    call_->OnDone();
    delete this;
  }

 private:
  struct Queued {
    Message message;
    int64_t bytes = 0;
  };

  void Queue(Message message) {
    const int64_t bytes =
        std::visit([](const auto& m) { return static_cast<int64_t>(m.ByteSizeLong()); }, message);
    queued_bytes_ += bytes;
    waiting_.push_back({std::move(message), bytes});
  }

  void FlushDiagnostics() {
    if (!diagnostics_) return;
    for (v1::DiagnosticsBlock& block : diagnostics_->Take()) Queue(std::move(block));
  }

  bool HasRoom() const {
    const int64_t pending = diagnostics_ ? diagnostics_->bytes() : 0;
    return queued_bytes_ + pending < call_->max_queued_bytes();
  }

  // Waits until the reader has taken enough. False: the call is to end before that.
  bool AwaitRoom(std::unique_lock<std::mutex>& lock) {
    // Writes wake it; cancelling, the deadline and the end of a drain are looked for.
    constexpr std::chrono::milliseconds kLook{20};
    bool waited = false;
    while (!broken_ && !HasRoom()) {
      if (!call_->Ends().ok()) return false;
      waited = true;
      room_.wait_for(lock, kLook);
    }
    return !(waited && broken_);
  }

  // Small work is held back, so that all its messages leave together, but not for long.
  bool HoldsBack() {
    constexpr std::chrono::milliseconds kLong{50};
    const auto now = std::chrono::steady_clock::now();
    if (!held_since_) held_since_ = now;
    return call_->is_small() && HasRoom() && now - *held_since_ < kLong;
  }

  // Starts the next write, or ends the stream where nothing is left.
  void WriteNext(std::unique_lock<std::mutex> lock) {
    if (writing_ || finished_) return;
    if (broken_) {
      waiting_.clear();
      queued_bytes_ = 0;
      diagnostics_.reset();
      progress_.reset();
    } else if (!final_ && HoldsBack()) {
      return;
    }
    if (waiting_.empty()) FlushDiagnostics();
    if (waiting_.empty() && progress_) {
      Queue(std::move(*progress_));
      progress_.reset();
    }
    if (waiting_.empty()) {
      if (!final_) return;
      finished_ = true;
      const grpc::Status status = *final_;
      lock.unlock();
      // May end in OnDone on another thread before it returns: nothing is touched after it.
      grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(status);
      return;
    }
    response_.Clear();
    std::visit([this](auto&& message) { Fill(std::move(message), response_); },
               std::move(waiting_.front().message));
    buffer_ = Serialized(response_);
    queued_bytes_ -= waiting_.front().bytes;
    waiting_.pop_front();
    writing_ = true;
    if (!first_written_) {
      first_written_ = true;
      call_->OnFirstMessage();
    }
    const bool last = waiting_.empty() && final_ && (!diagnostics_ || diagnostics_->empty());
    if (!last) {
      lock.unlock();
      this->StartWrite(&buffer_);
      return;
    }
    finished_ = true;
    const grpc::Status status = *final_;
    lock.unlock();
    this->StartWriteAndFinish(&buffer_, grpc::WriteOptions(), status);
  }

  const std::shared_ptr<StreamingCall> call_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::deque<Queued> waiting_;
  int64_t queued_bytes_ = 0;                                   // of `waiting_`
  std::optional<conversion::PendingDiagnostics> diagnostics_;  // after what waits
  std::optional<v1::Progress> progress_;
  std::optional<grpc::Status> final_;
  Response response_;
  grpc::ByteBuffer buffer_;  // `response_`, on its way
  std::optional<std::chrono::steady_clock::time_point> held_since_;
  bool writing_ = false;
  bool first_written_ = false;
  bool finished_ = false;
  bool broken_ = false;
};

}  // namespace simgrad::server::service
