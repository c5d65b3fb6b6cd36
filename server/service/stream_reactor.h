// The server side of one streaming RPC: an outbox that leaves by the answer of a call.
//
// One write is in flight at a time; what comes meanwhile waits in order, step diagnostics coalesced
// and progress replaced, at most StreamingCall::max_queued_bytes() and one part, and leaves
// together as far as it fits a message. A reader that keeps messages waiting, and takes less than
// StreamingCall::min_read_bytes_per_second() over slow_reader_timeout(), is given up: its call
// fails, is cut off where even that is not taken within as long again, and its connection after
// as long once more. Threads: as Outbox; gRPC's callbacks come one at a time, looks from OpenStreams.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "server/conversion/diagnostics_blocks.h"
#include "server/service/open_streams.h"
#include "server/service/outbox.h"
#include "server/service/service_call.h"
#include "server/service/streaming_call.h"

namespace simgrad::server::service {

class StreamReactor final : public StreamEvents, public Outbox, public OpenStream {
 public:
  // Lives in `streams` until its RPC is done. `call` learns of cancellation and of the end.
  static StreamReactor* Open(std::shared_ptr<StreamingCall> call, StreamAnswer& answer,
                             OpenStreams& streams);
  // Use Open.
  StreamReactor(std::shared_ptr<StreamingCall> call, StreamAnswer& answer, OpenStreams& streams);

  // Outbox:
  bool Send(EncodedPart part) override;
  bool SendDiagnostics(const sim::StepDiagnostics& diagnostics) override;
  void SendProgress(v1::Progress progress) override;
  void Finish(grpc::Status status) override;

  // StreamEvents:
  void OnWriteDone(bool ok) override;
  void OnCancel() override { call_->OnCancel(); }
  void OnDone() override;

  // Parts that were held back long enough leave; a reader that takes nothing is given up.
  void Look(Clock::time_point now) override;

 private:
  void Queue(EncodedPart part);
  void DropWaiting();
  void CountLost(int64_t parts) { call_->CountDropped(metrics::Dropped::kSlowClient, parts); }
  void FlushDiagnostics();
  bool IsEmpty() const {
    return waiting_.empty() && !progress_ && (!diagnostics_ || diagnostics_->empty());
  }
  bool HasRoom() const;
  // Waits until the reader has taken enough. False: the call is to end before that.
  bool AwaitRoom(std::unique_lock<std::mutex>& lock);
  bool HoldsBack();
  // Whether the reader took too little for too long.
  bool IsSlow(Clock::time_point now);
  // Moves what comes next into `message_`, as much as fits one message. False: there is nothing.
  bool TakeNext();
  // Starts the next write, or ends the stream where nothing is left.
  void WriteNext(std::unique_lock<std::mutex> lock);

  const std::shared_ptr<StreamingCall> call_;
  StreamAnswer& answer_;  // until OnDone
  OpenStreams& streams_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::deque<EncodedPart> waiting_;
  int64_t queued_bytes_ = 0;                                   // of `waiting_`
  std::optional<conversion::PendingDiagnostics> diagnostics_;  // after what waits
  std::optional<v1::Progress> progress_;
  std::optional<grpc::Status> final_;
  std::optional<grpc::Status> given_up_;  // with it the call ends, whatever else was to come
  bool is_too_long_ = false;              // for a part, and not for a slow reader
  grpc::ByteBuffer message_;              // on its way
  std::optional<Clock::time_point> held_since_;
  // Since the reader last had all there was, or was last looked at: when, and what it took.
  Clock::time_point watched_since_;
  int64_t taken_bytes_ = 0;
  int64_t in_flight_bytes_ = 0;
  bool watched_ = false;
  bool writing_ = false;
  bool first_written_ = false;
  bool finished_ = false;
  bool broken_ = false;
  bool done_ = false;
};

}  // namespace simgrad::server::service
