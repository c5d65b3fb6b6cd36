#include "server/service/stream_reactor.h"

#include <utility>
#include <vector>

namespace simgrad::server::service {

StreamReactor* StreamReactor::Open(std::shared_ptr<StreamingCall> call, StreamAnswer& answer,
                                   OpenStreams& streams) {
  auto reactor = std::make_shared<StreamReactor>(std::move(call), answer, streams);
  answer.SetEvents(reactor.get());
  streams.Add(reactor);
  return reactor.get();
}

StreamReactor::StreamReactor(std::shared_ptr<StreamingCall> call, StreamAnswer& answer,
                             OpenStreams& streams)
    : call_(std::move(call)), answer_(answer), streams_(streams) {}

bool StreamReactor::Send(EncodedPart part) {
  std::unique_lock lock(mutex_);
  if (!AwaitRoom(lock)) return false;
  FlushDiagnostics();
  if (part.is_result) {
    // Nothing of this run comes after its result; another one has other columns.
    progress_.reset();
    diagnostics_.reset();
  }
  Queue(std::move(part));
  const bool sent = !given_up_;
  WriteNext(std::move(lock));
  return sent;
}

bool StreamReactor::SendDiagnostics(const sim::StepDiagnostics& diagnostics) {
  std::unique_lock lock(mutex_);
  if (!AwaitRoom(lock)) return false;
  if (!diagnostics_) {
    diagnostics_.emplace(call_->column_names(), call_->max_payload_bytes());
  }
  diagnostics_->Append(diagnostics);
  WriteNext(std::move(lock));
  return true;
}

void StreamReactor::SendProgress(v1::Progress progress) {
  std::unique_lock lock(mutex_);
  if (progress_ && writing_) call_->CountDropped(metrics::Dropped::kSampled, 1);
  progress_ = std::move(progress);
  WriteNext(std::move(lock));
}

void StreamReactor::Finish(grpc::Status status) {
  std::unique_lock lock(mutex_);
  final_ = given_up_ ? *given_up_ : std::move(status);
  progress_.reset();
  WriteNext(std::move(lock));
}

void StreamReactor::OnWriteDone(bool ok) {
  if (!ok) call_->OnCancel();
  std::unique_lock lock(mutex_);
  writing_ = false;
  broken_ = broken_ || !ok;
  taken_bytes_ += in_flight_bytes_;
  watched_ = watched_ && !IsEmpty();
  room_.notify_all();
  WriteNext(std::move(lock));
}

void StreamReactor::OnDone() {
  const std::shared_ptr<StreamingCall> call = call_;
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  streams_.Remove(this);  // which may delete it
  call->OnDone();
}

void StreamReactor::Look(Clock::time_point now) {
  std::unique_lock lock(mutex_);
  if (done_) return;
  if (!writing_ || !IsSlow(now)) return WriteNext(std::move(lock));
  if (given_up_) return answer_.Cancel();
  given_up_ = call_->GiveUp(SlowReader::kTooLittle);
  CountLost(static_cast<int64_t>(waiting_.size()) + (diagnostics_ ? 1 : 0));
  DropWaiting();
  if (final_) final_ = given_up_;
  room_.notify_all();
}

bool StreamReactor::IsSlow(Clock::time_point now) {
  const auto watched = now - watched_since_;
  if (watched < call_->slow_reader_timeout()) return false;
  const double seconds = std::chrono::duration<double>(watched).count();
  const auto rate = static_cast<double>(call_->min_read_bytes_per_second());
  const double least = rate * seconds;
  const bool is_given_up = given_up_ && !is_too_long_;
  const bool is_slow = is_given_up || static_cast<double>(taken_bytes_) <= least;
  // The reader may have taken most of the message on its way, which nothing tells before its end.
  const auto at_most = static_cast<double>(taken_bytes_ + in_flight_bytes_);
  if (is_slow && !is_given_up && rate > 0 && at_most > least) return false;
  watched_since_ = now;
  taken_bytes_ = 0;
  return is_slow;
}

void StreamReactor::Queue(EncodedPart part) {
  if (given_up_) return;
  if (part.size() > call_->max_message_bytes()) {
    given_up_ = call_->EndTooLong(part);
    is_too_long_ = true;
    if (final_) final_ = given_up_;
    return;
  }
  queued_bytes_ += part.size();
  waiting_.push_back(std::move(part));
}

void StreamReactor::DropWaiting() {
  waiting_.clear();
  queued_bytes_ = 0;
  diagnostics_.reset();
  progress_.reset();
}

void StreamReactor::FlushDiagnostics() {
  if (!diagnostics_) return;
  diagnostics_->Take([this](const v1::DiagnosticsBlock& block) { Queue(Encoded(block)); });
}

bool StreamReactor::HasRoom() const {
  if (call_->is_tiny()) return true;  // of no more than was admitted
  const int64_t pending = diagnostics_ ? diagnostics_->bytes() : 0;
  return queued_bytes_ + pending < call_->max_queued_bytes();
}

bool StreamReactor::AwaitRoom(std::unique_lock<std::mutex>& lock) {
  // Writes wake it; cancelling, the deadline and the end of a drain are looked for.
  constexpr std::chrono::milliseconds kLook{20};
  bool waited = false;
  bool ends = false;
  while (!broken_ && !given_up_ && !HasRoom()) {
    ends = !call_->Ends().ok();
    if (ends) break;
    if (!waited) call_->PauseForReader();
    waited = true;
    room_.wait_for(lock, kLook);
  }
  if (waited) {
    // The worker is wanted back, which may take a while.
    lock.unlock();
    call_->ResumeAfterReader();
    lock.lock();
  }
  if (ends) return false;
  if (given_up_ && !is_too_long_) CountLost(1);
  return !given_up_ && !(waited && broken_);
}

// A message costs its reader some hundred microseconds, so parts wait for others: those of small
// work for all of its answer, but not for long. The next part, or a look, finds that they are due.
bool StreamReactor::HoldsBack() {
  constexpr std::chrono::milliseconds kSmall =
      std::chrono::milliseconds(50) - OpenStreams::kInterval;
  constexpr std::chrono::milliseconds kOther{10};
  const auto now = Clock::now();
  if (!held_since_) held_since_ = now;
  return HasRoom() && now - *held_since_ < (call_->is_small() ? kSmall : kOther);
}

bool StreamReactor::TakeNext() {
  std::vector<grpc::Slice> parts;
  for (int64_t bytes = 0;;) {
    if (waiting_.empty()) FlushDiagnostics();
    if (waiting_.empty() && progress_) {
      Queue(Encoded(*progress_));
      progress_.reset();
    }
    if (waiting_.empty()) break;
    const int64_t size = waiting_.front().size();
    bytes += size;
    if (!parts.empty() && bytes > call_->max_payload_bytes()) break;
    parts.push_back(std::move(waiting_.front().bytes));
    queued_bytes_ -= size;
    waiting_.pop_front();
  }
  if (parts.empty()) return false;
  held_since_.reset();
  message_ = grpc::ByteBuffer(parts.data(), parts.size());
  return true;
}

void StreamReactor::WriteNext(std::unique_lock<std::mutex> lock) {
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
    answer_.Finish(status);
    return;
  }
  writing_ = true;
  in_flight_bytes_ = static_cast<int64_t>(message_.Length());
  if (!watched_) {
    watched_ = true;
    watched_since_ = Clock::now();
    taken_bytes_ = 0;
  }
  if (!first_written_) {
    first_written_ = true;
    call_->OnFirstMessage();
  }
  if (!final_ || !IsEmpty()) {
    lock.unlock();
    answer_.Write(message_);
    return;
  }
  finished_ = true;
  const grpc::Status status = *final_;
  lock.unlock();
  answer_.WriteAndFinish(message_, status);
}

}  // namespace simgrad::server::service
