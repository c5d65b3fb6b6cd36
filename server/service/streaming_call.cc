#include "server/service/streaming_call.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/scheduling/steady_time.h"
#include "server/service/compile_memory.h"
#include "server/service/error_status.h"
#include "server/service/refusal_count.h"
#include "server/service/request_spans.h"
#include "server/service/variants.h"
#include "server/service/work_size.h"
#include "server/validation/request_error.h"

namespace simgrad::server::service {
namespace {

// The reason of an answer that is given up for its reader.
constexpr char kSlowReader[] = "SLOW_READER";

// Waking a worker takes longer than this: some hundred microseconds with every loop at its cap
// (10 ns for an element-operation, three times that for a gradient).
constexpr double kTinyWork = 1 << 13;

// Work below this has a lane of its own: some hundred milliseconds with every loop at its cap.
constexpr double kSmallLaneWork = 1 << 23;

double InstanceSteps(const PreparedWork& prepared) {
  const sim::Batch& batch = prepared.work.batch;
  const auto times = static_cast<double>(std::max<size_t>(prepared.cotangents.size(), 1));
  return static_cast<double>(batch.instances) * static_cast<double>(batch.steps) * times;
}

}  // namespace

StreamingCall::StreamingCall(const CallContext& context, metrics::Mode mode,
                             const std::string& method, absl::Time deadline,
                             const std::string& trace_parent)
    : context_(context),
      mode_(mode),
      cancellation_(std::make_shared<scheduling::Cancellation>(deadline)),
      rpc_(*context.metrics, method) {
  record_.began = rpc_.began();
  record_.request_id = NewRequestId();
  record_.method = method;
  record_.trace_parent = trace_parent;
}

void StreamingCall::Deny(const absl::Status& status, Outbox* outbox, const std::string& peer) {
  outbox_ = outbox;
  record_.peer = peer;
  End(status);
}

bool StreamingCall::Arrive(std::shared_ptr<scheduling::Caller> caller, int64_t request_bytes,
                           Outbox* outbox) {
  outbox_ = outbox;
  caller_ = std::move(caller);
  caller_metrics_ = &context_.metrics->caller(caller_->name());
  caller_metrics_->requests.Increment();
  record_.caller = caller_->name();
  auto arrival = context_.scheduler->Arrive(caller_, cancellation_->deadline());
  if (const auto* refusal = std::get_if<scheduling::Refusal>(&arrival)) {
    Refuse(*refusal);
    return false;
  }
  arrival_ = std::get<scheduling::Scheduler::Arrival>(std::move(arrival));
  auto upload = context_.scheduler->Reserve(kRequestCopies * request_bytes,
                                            scheduling::MemoryUse::kUpload, caller_);
  if (const auto* refusal = std::get_if<scheduling::Refusal>(&upload)) {
    Refuse(*refusal);
    return false;
  }
  upload_ = std::get<scheduling::MemoryBudget::Reservation>(std::move(upload));
  return true;
}

absl::StatusOr<PreparedWork> StreamingCall::Prepared(const Prepare& prepare) {
  scheduling::Scheduler& scheduler = *context_.scheduler;
  CompileMemory memory(scheduler, caller_);
  // The work is a part of this call, so it asks for more while this lives.
  const auto reserve = [this](int64_t more_bytes) { return memory_.Grow(more_bytes); };
  const auto take = [&](int64_t bytes) {
    if (upload_.Grow(bytes)) return true;
    lacking_ = scheduler.WhyNot(upload_.bytes(), bytes, scheduling::MemoryUse::kUpload, *caller_);
    return false;
  };
  const auto take_content = [&](int64_t bytes) { return take(kRequestCopies * bytes); };
  const auto take_numbers = [&](int64_t bytes) {
    if (!take(bytes)) return false;
    numbers_bytes_ += bytes;
    return true;
  };
  // The memory of the work has the numbers in it.
  const auto may_have = [&](int64_t bytes) {
    const int64_t held = upload_.bytes() - numbers_bytes_;
    return bytes <= std::min(scheduler.memory_limit_bytes(), caller_->limits().memory_bytes) - held;
  };
  auto prepared = prepare(record_.world, {memory.Control(cancellation_), reserve, take_content,
                                          take_numbers, may_have});
  if (memory.lacking()) lacking_ = memory.lacking();
  return prepared;
}

void StreamingCall::Begin(Prepare prepare, Preparation cost) {
  const bool is_quick = cost == Preparation::kQuick;
  if (is_quick && context_.scheduler->MayGoFirst(*caller_)) return Admit(Prepared(prepare), cost);
  scheduling::WorkQueue::Job job;
  job.caller = caller_;
  job.cancellation = cancellation_;
  job.run = [self = shared_from_this(), prepare = std::move(prepare), cost, is_quick](
                const absl::Status& on_time, absl::Duration waited,
                scheduling::WorkQueue::Turn& turn) {
    self->RecordWait(waited);
    if (on_time.ok()) return self->Admit(self->Prepared(prepare), cost, is_quick ? &turn : nullptr);
    self->CountUntaken(on_time);
    self->CountLost(on_time);
    self->End(on_time);
  };
  // Quick preparation takes its turn among small work: callers share both by weight.
  scheduling::WorkQueue& queue = is_quick ? context_.scheduler->lane(scheduling::Lane::kSmall)
                                          : context_.scheduler->preparation();
  job.make_room = [self = shared_from_this()](const scheduling::Refusal& refusal) {
    self->Refuse(refusal);
  };
  if (const auto refusal = queue.Enqueue(job)) Refuse(*refusal);
}

void StreamingCall::Refuse(const scheduling::Refusal& refusal) {
  CountRefusal(*context_.metrics, refusal.reason, caller_->name());
  const grpc::Status status = ToGrpcStatus(refusal, record_.request_id);
  record_.outcome = CodeLabel(status.error_code());
  record_.message = status.error_message();
  // Before the caller knows: one that has its answer finds nothing held.
  upload_ = scheduling::MemoryBudget::Reservation();
  memory_ = scheduling::MemoryBudget::Reservation();
  arrival_.EndWork();
  outbox_->Finish(status);
}

// Charges the work to the caller's own limits. Returns false if it was refused.
bool StreamingCall::TakeQuota(double instance_steps) {
  const absl::Duration wait = caller_->TakeSteps(instance_steps, SteadyNow());
  if (wait == absl::ZeroDuration()) {
    taken_steps_ = instance_steps;
    return true;
  }
  Refuse({scheduling::RefusalReason::kRate,
          absl::StrCat("caller '", caller_->name(), "' has used up its ",
                       caller_->limits().instance_steps_per_second, " instance-steps per second"),
          wait});
  return false;
}

// A step is paid once, whether it runs forward, again or in reverse: of a gradient with its rollout,
// of a Vjp once for each cotangent.
double StreamingCall::RanSteps() const {
  const int64_t begun = *std::max_element(begun_steps_.begin(), begun_steps_.end());
  return answered_steps_ +
         static_cast<double>(instances_) * static_cast<double>(std::min(begun, steps_));
}

scheduling::WorkQueue::Job StreamingCall::RunJob() {
  scheduling::WorkQueue::Job job;
  job.caller = caller_;
  job.cancellation = cancellation_;
  job.run = [self = shared_from_this()](const absl::Status& admitted, absl::Duration waited,
                                        scheduling::WorkQueue::Turn& turn) {
    self->Run(admitted, waited, turn);
  };
  job.give_up = [self = shared_from_this()] { self->GiveUp(SlowReader::kOneOfTooMany); };
  job.make_room = [self = shared_from_this()](const scheduling::Refusal& refusal) {
    self->admitted_ = false;
    self->caller_->EndSteps(self->taken_steps_, 0);
    self->Refuse(refusal);
  };
  return job;
}

void StreamingCall::Admit(absl::StatusOr<PreparedWork> prepared, Preparation cost,
                          scheduling::WorkQueue::Turn* turn) {
  if (const absl::Status ends = cancellation_->Check(); !ends.ok()) {
    EndWaiting();
    if (absl::IsDeadlineExceeded(ends)) {
      context_.metrics->queue_rejected.at("deadline").Increment();
    }
    CountLost(ends);
    return End(ends);
  }
  if (!prepared.ok()) {
    EndWaiting();
    const bool lacks = lacking_ && absl::IsResourceExhausted(prepared.status());
    return lacks ? Refuse(*lacking_) : End(prepared.status());
  }
  // The memory of the work has the numbers in it.
  upload_.Resize(upload_.bytes() - std::exchange(numbers_bytes_, 0));
  auto memory = context_.scheduler->Reserve(prepared->memory_bytes, scheduling::MemoryUse::kWork,
                                            caller_, upload_.bytes());
  if (const auto* refusal = std::get_if<scheduling::Refusal>(&memory)) return Refuse(*refusal);
  const std::shared_ptr<Variants> variants = prepared->variants;
  if (!TakeQuota(variants ? variants->instance_steps() : InstanceSteps(*prepared))) return;
  memory_ = std::get<scheduling::MemoryBudget::Reservation>(std::move(memory));
  admitted_bytes_ = prepared->memory_bytes;
  // The request goes as soon as this returns, unless more runs are made of it.
  if (!variants) upload_ = scheduling::MemoryBudget::Reservation();
  admitted_ = true;
  record_.instances = prepared->work.batch.instances;
  record_.steps = prepared->work.batch.steps;
  if (variants) record_.runs = 1 + variants->count();
  Take(*std::move(prepared), record_.world);
  small_ = !variants && IsSmall(prepared_.work);
  const double work = variants ? variants->work_at_caps() : WorkAtCaps(prepared_);
  // A GPU may have a kernel to compile.
  tiny_ = small_ && context_.device == "cpu" && work <= kTinyWork && cost == Preparation::kQuick;
  if (tiny_ && turn != nullptr) return Run(absl::OkStatus(), absl::ZeroDuration(), *turn);
  scheduling::WorkQueue& lane = context_.scheduler->lane(
      work <= kSmallLaneWork ? scheduling::Lane::kSmall : scheduling::Lane::kLarge);
  // The lane may run it, and the stream may end, before it is enqueued.
  scheduling::WorkQueue::Job job = RunJob();
  if (const auto refusal = context_.scheduler->Enqueue(lane, job, tiny_)) job.make_room(*refusal);
}

void StreamingCall::Take(PreparedWork prepared, const std::string& world_label) {
  prepared_ = std::move(prepared);
  instances_ = prepared_.work.batch.instances;
  steps_ = prepared_.work.batch.steps;
  has_run_ = true;
  record_.Add(Stage::kDecode, prepared_.decode_seconds, prepared_.decode);
  record_.Add(Stage::kCompile, prepared_.compile_seconds, prepared_.compile);
  const sim::NumericalProgram& program = *prepared_.program->program;
  column_names_ = conversion::ColumnNamesOf(program);
  world_ = &context_.metrics->world(world_label);
  sites_ = metrics::HandlesOf(*world_, program.sites);
}

void StreamingCall::OnCancel() {
  cancelled_ = true;
  cancellation_->Cancel(absl::CancelledError("the caller cancelled"));
  context_.scheduler->DropCancelled();
}

void StreamingCall::PauseForReader() {
  if (turn_ != nullptr) turn_->Pause();
}

void StreamingCall::ResumeAfterReader() {
  if (turn_ != nullptr) turn_->Resume();
}

void StreamingCall::EndWaiting() {
  context_.metrics->queue_wait_seconds.Observe(absl::ToDoubleSeconds(waited_));
}

void StreamingCall::CountUntaken(const absl::Status& why) {
  if (absl::IsDeadlineExceeded(why)) context_.metrics->queue_rejected.at("expired").Increment();
}

void StreamingCall::RecordWait(absl::Duration waited) {
  waited_ += waited;
  const SteadyTime now = std::chrono::steady_clock::now();
  record_.Add(Stage::kQueue, absl::ToDoubleSeconds(waited),
              {now - absl::ToChronoNanoseconds(waited), now});
}

void StreamingCall::RecordStages() {
  clock_.Enter(Stage::kNone);
  for (size_t i = 1; i < kStageNames.size(); ++i) {
    const auto stage = static_cast<Stage>(i);
    if (const auto& extent = clock_.extent(stage)) {
      record_.Add(stage, clock_.seconds(stage), *extent);
    }
  }
}

void StreamingCall::Run(const absl::Status& admitted, absl::Duration waited,
                        scheduling::WorkQueue::Turn& turn) {
  arrival_.Begin();
  RecordWait(waited);
  if (!admitted.ok()) {
    CountUntaken(admitted);
    caller_->EndSteps(taken_steps_, 0);
    return End(admitted);
  }
  EndWaiting();
  caller_metrics_->instance_steps.Add(taken_steps_);
  turn_ = &turn;
  absl::Status status;
  try {
    status = ExecuteAll();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the machine has no memory left for this request");
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  turn_ = nullptr;
  // Before the caller knows: one that has its answer may ask again.
  caller_->EndSteps(taken_steps_, status.ok() ? taken_steps_ : RanSteps());
  End(status);
}

metrics::Outcome StreamingCall::OutcomeOf(const absl::Status& status) const {
  if (status.ok()) return metrics::Outcome::kOk;
  if (absl::IsDeadlineExceeded(status)) return metrics::Outcome::kExpired;
  const bool stopped = absl::IsCancelled(status) || absl::IsUnavailable(status);
  return stopped ? metrics::Outcome::kCancelled : metrics::Outcome::kFailed;
}

void StreamingCall::CountLost(const absl::Status& status) {
  const size_t where = static_cast<size_t>(where_.load());
  const metrics::Outcome outcome = OutcomeOf(status);
  if (outcome == metrics::Outcome::kCancelled) rpc_.method().cancelled[where].Increment();
  if (outcome == metrics::Outcome::kExpired) rpc_.method().deadline_exceeded[where].Increment();
}

// Counts the end of a request that was admitted.
void StreamingCall::CountEnd(const absl::Status& status) {
  if (has_run_) {
    world_->rollouts[static_cast<size_t>(mode_)][static_cast<size_t>(OutcomeOf(status))]
        .Increment();
  }
  if (validation::ReasonOf(status) == kSlowReader) {
    context_.metrics->queue_rejected.at("slow_reader").Increment();
  }
  CountLost(status);
}

void StreamingCall::End(const absl::Status& status) {
  const grpc::Status wire = ToGrpcStatus(status, record_.request_id);
  record_.outcome = CodeLabel(wire.error_code());
  record_.message = std::string(status.message());
  ended_ok_ = admitted_ && status.ok();
  if (admitted_ && !ended_ok_) CountEnd(status);
  RecordStages();
  prepared_.work = sim::Work();  // its tensors go now, the reservation with the stream
  prepared_.kept = nullptr;
  prepared_.variants = nullptr;
  comparison_.reset();
  upload_ = scheduling::MemoryBudget::Reservation();
  arrival_.EndWork();
  outbox_->Finish(wire);
}

void StreamingCall::OnFirstMessage() {
  rpc_.method().first_message_seconds.Observe(rpc_.Seconds());
}

grpc::Status StreamingCall::GiveUp(SlowReader why) {
  const std::string reason =
      why == SlowReader::kTooLittle
          ? absl::StrCat("the reader kept the answer waiting for ",
                         absl::FormatDuration(context_.slow_reader_timeout), " and took less than ",
                         context_.min_read_bytes_per_second,
                         " bytes per second of it (--slow_reader_timeout, "
                         "--min_read_bytes_per_second)")
          : "the reader keeps this answer waiting, and too many other answers wait as well";
  const absl::Status status = validation::WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          reason, "; the answer was given up: read without long pauses, or ask for less of it")),
      kSlowReader);
  cancellation_->Cancel(status);
  if (why == SlowReader::kTooLittle) given_up_ = true;
  return ToGrpcStatus(status, record_.request_id);
}

grpc::Status StreamingCall::EndTooLong(const EncodedPart& part) {
  const absl::Status status = validation::LimitExceeded(
      prepared_.kept != nullptr ? "handle" : part.field,
      absl::StrCat("one part of the answer has ", part.size(),
                   " bytes, as so many sites, states or names have, and a message at most ",
                   max_message_bytes(),
                   "; ask for fewer of them, or raise --max_message_bytes of the server"));
  cancellation_->Cancel(status);
  return ToGrpcStatus(status, record_.request_id);
}

void StreamingCall::CountDropped(metrics::Dropped reason, int64_t parts) {
  context_.metrics->stream_dropped[static_cast<size_t>(reason)].Add(static_cast<double>(parts));
}

void StreamingCall::OnDone() {
  if (ended_ok_) {
    // The work was done. Was all of it taken? A caller may leave, run out of time, or read too slowly.
    const bool is_taken = !given_up_ && !cancelled_;
    const absl::Status end = is_taken ? absl::OkStatus() : cancellation_->Check();
    CountEnd(end);
    record_.outcome = CodeLabel(ToGrpcStatus(end, record_.request_id).error_code());
    record_.message = std::string(end.message());
  }
  prepared_ = PreparedWork();  // its program may have been in no cache but here
  memory_ = scheduling::MemoryBudget::Reservation();
  upload_ = scheduling::MemoryBudget::Reservation();
  arrival_ = scheduling::Scheduler::Arrival();
  record_.total_seconds = rpc_.Seconds();
  rpc_.End(record_.outcome);
  TellOfEnd(record_, context_.spans);
}

}  // namespace simgrad::server::service
