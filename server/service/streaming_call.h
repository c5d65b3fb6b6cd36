// One Rollout, Gradient, Vjp or Compare from arrival to end: admission, its runs, their messages, its record.
//
// Threads: Arrive and Begin on the thread that took the RPC, a costly preparation and Run on
// workers, OnCancel and OnDone on gRPC's.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/conversion/diagnostics_blocks.h"
#include "server/conversion/run_comparison.h"
#include "server/metrics/server_metrics.h"
#include "server/scheduling/scheduler.h"
#include "server/service/open_streams.h"
#include "server/service/outbox.h"
#include "server/service/prepare.h"
#include "server/service/request_log.h"
#include "server/service/rpc_scope.h"
#include "server/service/stage_clock.h"
#include "server/tracing/span_exporter.h"

namespace simgrad::server::service {

// The state that all calls share; outlives them.
struct CallContext {
  metrics::ServerMetrics* metrics = nullptr;
  scheduling::Scheduler* scheduler = nullptr;
  std::shared_ptr<const sim::Engine> engine;
  std::string device;  // kind
  std::string version;
  std::string revision;
  tracing::SpanExporter* spans = nullptr;  // null: no traces
  OpenStreams* streams = nullptr;
  KeptRuns* kept = nullptr;
  int64_t max_message_bytes = int64_t{4} << 20;
  absl::Duration slow_reader_timeout = absl::InfiniteDuration();
  int64_t min_read_bytes_per_second = 0;
};

// Why an answer is given up: its reader took too little for too long, or keeps it waiting while more
// answers wait than may.
enum class SlowReader : uint8_t { kTooLittle, kOneOfTooMany };

class StreamingCall final : public sim::Observer,
                            public std::enable_shared_from_this<StreamingCall> {
 public:
  // `trace_parent`: the W3C trace context of the caller, for log and spans; may be empty.
  StreamingCall(const CallContext& context, metrics::Mode mode, const std::string& method,
                absl::Time deadline, const std::string& trace_parent);

  // A place for a request of so many bytes, before they are parsed. False: `outbox` was finished with
  // the refusal.
  bool Arrive(std::shared_ptr<scheduling::Caller> caller, int64_t request_bytes, Outbox* outbox);
  // Prepares, at once where it is quick; then admits and enqueues, or finishes the outbox with the
  // refusal. `prepare` is called once and keeps what it reads; it tells the label of the world for
  // metrics as soon as it is known.
  using Prepare = std::function<absl::StatusOr<PreparedWork>(std::string& world_label,
                                                             const PrepareControl& control)>;
  void Begin(Prepare prepare, Preparation cost);
  // Instead of Begin: ends the call. `outbox`: as for Arrive.
  void Deny(const absl::Status& status, Outbox* outbox, const std::string& peer = "");

  void OnCancel();
  void OnDone();
  void OnFirstMessage();
  // The work is stopped for its reader's sake. Returns what the caller is told.
  grpc::Status GiveUp(SlowReader why);
  // Ends the work for a part of its answer that no message holds. Returns the status of the call.
  grpc::Status EndTooLong(const EncodedPart& part);
  void CountDropped(metrics::Dropped reason, int64_t parts);

  const conversion::ColumnNames& column_names() const { return column_names_; }
  int64_t max_message_bytes() const { return context_.max_message_bytes; }
  // The most payload of a message: the rest is names and framing.
  int64_t max_payload_bytes() const { return context_.max_message_bytes / 2; }
  // The most that may wait for a slow reader before the work does.
  int64_t max_queued_bytes() const { return kQueuedMessages * context_.max_message_bytes; }
  // How long a reader may leave one message untaken.
  std::chrono::nanoseconds slow_reader_timeout() const {
    return absl::ToChronoNanoseconds(context_.slow_reader_timeout);
  }
  // Not OK: cancelled, expired, or cut off by a drain.
  absl::Status Ends() const { return cancellation_->Check(); }
  // The least that a reader must take, once it keeps the work waiting.
  int64_t min_read_bytes_per_second() const { return context_.min_read_bytes_per_second; }
  // The reader keeps the work waiting: its worker does something else meanwhile.
  void PauseForReader();
  void ResumeAfterReader();
  // So few steps that its messages are best sent together at the end, unless they take long.
  bool is_small() const { return small_; }
  // So little that the thread that took the RPC does it at once: it must not wait for anything.
  bool is_tiny() const { return tiny_; }

 private:
  // sim::Observer:
  absl::Status Continue(sim::WorkPhase phase) override;
  void OnChunk(sim::WorkPhase phase, int64_t steps) override;
  void OnStart(const std::vector<sim::Tensor>& recorded_states) override;
  void OnForward(const sim::ForwardChunk& chunk) override;
  void OnRecompute(int64_t steps) override;
  void OnAdjoint(int64_t first_step, const sim::AdjointChunk& chunk) override;
  void OnArithmetic(int64_t counted, int64_t instances) override;

  void Refuse(const scheduling::Refusal& refusal);
  absl::StatusOr<PreparedWork> Prepared(const Prepare& prepare);
  // `turn`: of the job of the small lane that prepared it, which then does tiny work too.
  void Admit(absl::StatusOr<PreparedWork> prepared, Preparation cost,
             scheduling::WorkQueue::Turn* turn = nullptr);
  bool TakeQuota(double instance_steps);
  // Instance-steps of those taken that ran: answers that are complete, and chunks of the next that began.
  double RanSteps() const;
  // The work that runs next, of a world with this label.
  void Take(PreparedWork prepared, const std::string& world_label);
  scheduling::WorkQueue::Job RunJob();
  void Run(const absl::Status& admitted, absl::Duration waited, scheduling::WorkQueue::Turn& turn);
  absl::Status ExecuteAll();
  absl::Status TakeVariant(Variants& variants, int variant);
  absl::Status Execute();
  void CountRun();
  void Start();  // the engine is next
  // One answer: to the work, or to one cotangent of a Vjp.
  absl::Status Answer(const sim::Work& facts, const absl::StatusOr<sim::WorkResult>& result);
  absl::Status Reverse(const sim::Work& facts);
  void SendComparison(v1::Comparison comparison);
  void AddKept(const sim::WorkResult& result, v1::RolloutResult& answer);
  template <class Message>
  void Post(const Message& part) {
    Post(Encoded(part));
  }
  void Post(EncodedPart part);  // to the outbox
  // Something could not be sent any more, as the call ended while it waited for the reader.
  void NoteDropped();
  void SendHeader();
  void SendAnswer(const sim::Work& facts, const sim::WorkResult& result);
  void AddScaler(const sim::WorkResult& result, v1::GradientResult& answer);
  void Report(const std::string& phase, int64_t done);
  // Ends the answer; the record is written in OnDone.
  void End(const absl::Status& status);
  void CountLost(const absl::Status& status);
  void CountEnd(const absl::Status& status);
  void RecordWait(absl::Duration waited);  // which ends now
  void EndWaiting();                       // it was taken up
  void CountUntaken(const absl::Status& why);
  void RecordStages();
  metrics::Outcome OutcomeOf(const absl::Status& status) const;

  const CallContext& context_;
  const metrics::Mode mode_;
  const std::shared_ptr<scheduling::Cancellation> cancellation_;
  RpcScope rpc_;
  RequestRecord record_;
  StageClock clock_;
  SteadyTime started_;  // when the engine was last called, which compiles first
  std::optional<SteadyTime>
      reversed_;  // when it began its adjoint, for which it compiles first too
  Outbox* outbox_ = nullptr;
  std::shared_ptr<scheduling::Caller> caller_;
  metrics::CallerMetrics* caller_metrics_ = nullptr;
  double taken_steps_ = 0;                // instance-steps, of the caller's account
  double answered_steps_ = 0;             // of these, for answers that are complete
  std::array<int64_t, 3> begun_steps_{};  // of the next answer: forward, again and in reverse
  scheduling::Scheduler::Arrival arrival_;
  scheduling::MemoryBudget::Reservation upload_;
  std::optional<scheduling::Refusal> lacking_;  // memory, while the work was prepared
  int64_t numbers_bytes_ = 0;  // of upload_: what the work's numbers take until it is admitted
  scheduling::MemoryBudget::Reservation memory_;
  scheduling::WorkQueue::Turn* turn_ = nullptr;   // while it runs on a worker
  absl::Duration waited_ = absl::ZeroDuration();  // to be prepared, and to run
  int64_t admitted_bytes_ = 0;                    // of memory_
  PreparedWork prepared_;
  // The run that is admitted and not complete; record_ has the numbers of the first.
  bool has_run_ = false;
  int64_t instances_ = 0;
  int64_t steps_ = 0;
  double observed_encode_ = 0;  // seconds of clock_ that metrics have
  std::optional<conversion::RunComparison> comparison_;
  conversion::ColumnNames column_names_;
  metrics::WorldMetrics* world_ = nullptr;
  metrics::SiteHandles sites_;
  bool small_ = true;
  bool tiny_ = false;
  bool admitted_ = false;
  bool ended_ok_ = false;
  bool dropped_ = false;
  std::atomic<metrics::LostIn> where_{metrics::LostIn::kQueued};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> given_up_{false};
};

}  // namespace simgrad::server::service
