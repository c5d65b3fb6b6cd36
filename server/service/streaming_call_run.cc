// The part of a call that a worker does: its runs, one after the other, and their messages.
#include <algorithm>
#include <utility>

#include "server/conversion/loss_scaler.h"
#include "server/conversion/path.h"
#include "server/conversion/program_info.h"
#include "server/conversion/result.h"
#include "server/conversion/stream_header.h"
#include "server/conversion/trajectory_chunks.h"
#include "server/service/compile_memory.h"
#include "server/service/streaming_call.h"
#include "server/service/variants.h"

namespace simgrad::server::service {
namespace {

// The loss scale of a gradient, in force for as long as this lives.
class LossScaleInForce {
 public:
  LossScaleInForce(metrics::ServerMetrics& metrics, const PreparedWork& prepared)
      : metrics_(metrics),
        scale_(prepared.program->program->policy.loss_scale),
        is_gradient_(prepared.work.gradient.has_value()) {
    if (is_gradient_) metrics_.BeginLossScale(scale_);
  }
  ~LossScaleInForce() {
    if (is_gradient_) metrics_.EndLossScale(scale_);
  }
  LossScaleInForce(const LossScaleInForce&) = delete;
  LossScaleInForce& operator=(const LossScaleInForce&) = delete;

 private:
  metrics::ServerMetrics& metrics_;
  const double scale_;
  const bool is_gradient_;
};

}  // namespace

absl::Status StreamingCall::Continue(sim::WorkPhase phase) {
  // A reversal whose rollout is run again, since nothing of it could be taken over.
  if (prepared_.kept != nullptr && phase == sim::WorkPhase::kForward) {
    phase = sim::WorkPhase::kRecompute;
  }
  // Arithmetic is counted after the last pass, and lost with it.
  if (!dropped_ && phase != sim::WorkPhase::kArithmetic) {
    where_ =
        phase == sim::WorkPhase::kForward ? metrics::LostIn::kForward : metrics::LostIn::kAdjoint;
  }
  if (turn_ != nullptr) turn_->LetOthers([this] { clock_.Enter(Stage::kQueue); });
  switch (phase) {
    case sim::WorkPhase::kForward:
      clock_.Enter(Stage::kForward);
      break;
    case sim::WorkPhase::kRecompute:
      clock_.Enter(Stage::kRecompute);
      break;
    case sim::WorkPhase::kAdjoint:
      clock_.Enter(Stage::kAdjoint);
      if (!reversed_) reversed_ = clock_.since();
      break;
    case sim::WorkPhase::kArithmetic:
      clock_.Enter(Stage::kArithmetic);
      break;
  }
  return cancellation_->Check();
}

void StreamingCall::OnChunk(sim::WorkPhase phase, int64_t steps) {
  begun_steps_[static_cast<size_t>(phase)] += steps;
}

void StreamingCall::Post(EncodedPart part) {
  const WithinStage send(clock_, Stage::kSend);
  if (!outbox_->Send(std::move(part))) NoteDropped();
}

void StreamingCall::NoteDropped() {
  dropped_ = true;
  where_ = metrics::LostIn::kStream;
}

void StreamingCall::Report(const std::string& phase, int64_t done) {
  v1::Progress progress;
  progress.set_phase(phase);
  progress.set_steps_done(done);
  progress.set_steps_total(steps_);
  outbox_->SendProgress(std::move(progress));
}

void StreamingCall::OnStart(const std::vector<sim::Tensor>& recorded_states) {
  const WithinStage encode(clock_, Stage::kEncode);
  size_t state = 0;
  for (const conversion::Recorded& field : prepared_.recorded) {
    if (!field.is_state) continue;
    for (const v1::TrajectoryChunk& chunk : conversion::TrajectoryChunks(
             field, recorded_states[state++], instances_, 0, 1, max_payload_bytes())) {
      Post(chunk);
    }
  }
}

void StreamingCall::OnForward(const sim::ForwardChunk& chunk) {
  // Its rollout told what happened.
  if (prepared_.kept != nullptr) return OnRecompute(chunk.diagnostics.steps);
  const WithinStage encode(clock_, Stage::kEncode);
  context_.metrics->RecordForward(chunk.diagnostics, sites_);
  context_.metrics->RecordSteps(metrics::Direction::kForward, chunk.diagnostics.steps * instances_);
  if (comparison_) comparison_->Add(prepared_.recorded, chunk);
  for (const v1::TrajectoryChunk& part :
       conversion::TrajectoryOfChunk(prepared_.recorded, chunk, instances_, max_payload_bytes())) {
    Post(part);
  }
  if (prepared_.send_diagnostics) {
    const Stage encoding = clock_.Enter(Stage::kSend);
    if (!outbox_->SendDiagnostics(chunk.diagnostics)) NoteDropped();
    clock_.Enter(encoding);
    for (const v1::DiagnosticsBlock& block : conversion::InstanceBlocks(
             column_names_, chunk.diagnostics.first_step, chunk.diagnostics.steps, instances_,
             chunk.instance_sites, max_payload_bytes())) {
      Post(block);
    }
  }
  Report("forward", chunk.diagnostics.first_step + chunk.diagnostics.steps);
}

void StreamingCall::OnRecompute(int64_t steps) {
  context_.metrics->RecordSteps(metrics::Direction::kRecompute, steps * instances_);
}

void StreamingCall::OnAdjoint(int64_t first_step, const sim::AdjointChunk& chunk) {
  context_.metrics->RecordSteps(metrics::Direction::kAdjoint,
                                static_cast<int64_t>(chunk.steps.size()) * instances_);
  Report("adjoint", steps_ - first_step);
}

void StreamingCall::OnArithmetic(int64_t counted, int64_t instances) {
  Report("arithmetic", steps_ * counted / instances);
}

void StreamingCall::SendHeader() {
  v1::StreamHeader header = conversion::StreamHeaderToProto(prepared_.recorded, instances_, steps_);
  header.set_device(context_.device);
  header.set_server_version(context_.version);
  header.set_revision(context_.revision);
  header.set_request_id(record_.request_id);
  if (const auto& path = prepared_.program->program->path) {
    *header.mutable_path() = conversion::PathLayoutToProto(*path);
  }
  const std::string& info = prepared_.program->info;
  if (prepared_.program_detail != v1::PROGRAM_DETAIL_TEXT) return Post(Encoded(info, header));
  const std::string& text = prepared_.program->program->text;
  const size_t together = info.size() + text.size() + header.ByteSizeLong();
  if (static_cast<int64_t>(together) <= max_payload_bytes()) {
    return Post(Encoded(conversion::WithText(info, text), header));
  }
  Post(Encoded(info, header));
  // One at a time: what waits for the reader is bounded, whatever the text has.
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t offset = 0; offset < size; offset += max_payload_bytes()) {
    Post(conversion::PieceAt(offset, "program.text", text, max_payload_bytes()));
  }
}

void StreamingCall::SendAnswer(const sim::Work& facts, const sim::WorkResult& result) {
  const auto send = [&](auto answer) {
    for (const v1::TensorPiece& piece : conversion::SplitOff(answer, max_payload_bytes())) {
      Post(piece);
    }
    Post(comparison_ ? EncodedOfCompare(answer) : Encoded(answer));
  };
  if (!facts.gradient) {
    v1::RolloutResult answer = conversion::RolloutResultToProto(facts, result);
    AddKept(result, answer);
    return send(std::move(answer));
  }
  if (prepared_.send_diagnostics) {
    for (const v1::BackwardBlock& block :
         conversion::BackwardBlocks(result.backward, result.adjoint_ranges, max_payload_bytes())) {
      Post(block);
    }
  }
  v1::GradientResult answer = conversion::GradientResultToProto(facts, result);
  if (prepared_.loss_scaler) AddScaler(result, answer);
  if (prepared_.kept != nullptr) {
    answer.set_reused(result.forward_steps == 0);
    answer.mutable_rollout()->clear_path_signatures();
    answer.mutable_rollout()->clear_first_events();
  }
  send(std::move(answer));
}

void StreamingCall::SendComparison(v1::Comparison comparison) {
  const auto parted = static_cast<double>(comparison.parted());
  context_.metrics->path_comparisons.at("diverged").Add(parted);
  context_.metrics->path_comparisons.at("equal").Add(static_cast<double>(comparison.instances()) -
                                                     parted);
  for (const v1::SiteComparison& site : comparison.sites()) {
    metrics::AddFlips(*world_, site.site(), site.flips());
  }
  for (const v1::TensorPiece& piece : conversion::SplitOff(comparison, max_payload_bytes())) {
    Post(piece);
  }
  Post(comparison);
}

void StreamingCall::AddKept(const sim::WorkResult& result, v1::RolloutResult& answer) {
  if (result.kept == nullptr || prepared_.keep_spec == nullptr) return;
  const auto handle = context_.kept->Keep(
      {result.kept, prepared_.keep_spec, prepared_.program->world}, caller_->name());
  if (!handle) return;
  answer.mutable_kept()->set_handle(*handle);
  answer.mutable_kept()->set_seconds(absl::ToDoubleSeconds(context_.kept->ttl()));
}

void StreamingCall::AddScaler(const sim::WorkResult& result, v1::GradientResult& answer) {
  const v1::DynamicLossScale& scaler = *prepared_.loss_scaler;
  const bool is_clean = conversion::IsClean(scaler, result);
  answer.set_skipped(!is_clean);
  *answer.mutable_loss_scale_state() = conversion::NextScaler(scaler, is_clean);
  if (!is_clean) answer.add_warnings(conversion::WhySkipped(result));
  context_.metrics->RecordScaler(conversion::ScaleOf(scaler), answer.loss_scale_state().scale());
}

absl::Status StreamingCall::ExecuteAll() {
  const std::shared_ptr<Variants> variants = prepared_.variants;
  if (!variants) return Execute();
  comparison_.emplace();
  absl::Status status = Execute();
  for (int i = 0; i < variants->count() && status.ok() && !dropped_; ++i) {
    constexpr auto kOk = static_cast<size_t>(metrics::Outcome::kOk);
    world_->rollouts[static_cast<size_t>(mode_)][kOk].Increment();
    has_run_ = false;
    status = TakeVariant(*variants, i);
    if (!status.ok()) return status;
    status = Execute();
    if (!status.ok() && cancellation_->Check().ok()) status = variants->Of(i, status);
  }
  return status;
}

absl::Status StreamingCall::TakeVariant(Variants& variants, int variant) {
  clock_.Enter(Stage::kNone);  // its preparation is told with those before it
  prepared_ = PreparedWork();
  memory_.Resize(admitted_bytes_);  // which leaves out what the run before asked for
  CompileMemory memory(*context_.scheduler, caller_);
  const auto reserve = [this](int64_t more_bytes) { return memory_.Grow(more_bytes); };
  auto prepared = variants.Prepare(variant, {memory.Control(cancellation_), reserve, {}, {}});
  if (const absl::Status ends = cancellation_->Check(); !ends.ok()) return ends;
  if (!prepared.ok()) return prepared.status();
  Take(*std::move(prepared), variants.LabelOf(variant));
  return absl::OkStatus();
}

// Counts a run as it begins: that of the call, or one of a Compare.
void StreamingCall::CountRun() {
  metrics::ServerMetrics& metrics = *context_.metrics;
  const double instances = static_cast<double>(instances_);
  const auto times = static_cast<double>(std::max<size_t>(prepared_.cotangents.size(), 1));
  world_->instances[static_cast<size_t>(mode_)].Add(instances * times);
  if (prepared_.kept == nullptr) metrics.batch_instances[0].Observe(instances);
  if (prepared_.work.gradient) metrics.batch_instances[1].Observe(instances);
  metrics.phase_seconds.at("decode").Observe(prepared_.decode_seconds);
  const conversion::NonFiniteInputs& bad = prepared_.nonfinite_inputs;
  metrics.RecordInputs(bad.state_nan, bad.state_inf, bad.other_nan, bad.other_inf);
}

absl::Status StreamingCall::Execute() {
  CountRun();
  const LossScaleInForce loss_scale(*context_.metrics, prepared_);
  if (comparison_) {
    comparison_->Begin(prepared_.work.batch.program, instances_, steps_);
  }
  clock_.Enter(Stage::kEncode);
  SendHeader();
  const sim::Work facts = conversion::WithoutTensors(prepared_.work);
  prepared_.work.options.stop = [asked = cancellation_] { return !asked->Check().ok(); };
  if (prepared_.kept != nullptr) return Reverse(facts);
  Start();
  return Answer(facts, context_.engine->Execute(std::move(prepared_.work), *this));
}

void StreamingCall::Start() {
  clock_.Enter(Stage::kStart);
  started_ = clock_.since();
  reversed_.reset();
}

absl::Status StreamingCall::Reverse(const sim::Work& facts) {
  for (sim::Cotangents& cotangents : prepared_.cotangents) {
    sim::Work work = prepared_.work;
    work.batch.cotangents = std::move(cotangents);
    Start();
    const absl::Status answered =
        Answer(facts, context_.engine->Reverse(*prepared_.kept, std::move(work), *this));
    if (!answered.ok() || dropped_) return answered;
  }
  return absl::OkStatus();
}

absl::Status StreamingCall::Answer(const sim::Work& facts,
                                   const absl::StatusOr<sim::WorkResult>& result) {
  if (!result.ok()) return result.status();
  answered_steps_ += static_cast<double>(instances_) * static_cast<double>(steps_);
  begun_steps_.fill(0);
  clock_.Enter(Stage::kEncode);
  if (steps_ == 0 && prepared_.send_diagnostics && prepared_.kept == nullptr) {
    Post(conversion::EmptyBlock(column_names_));
  }
  where_ = metrics::LostIn::kStream;
  const auto what =
      prepared_.kept == nullptr ? metrics::Recorded::kAll : metrics::Recorded::kReversal;
  context_.metrics->RecordResult(facts, *result, what, *world_);
  SendAnswer(facts, *result);
  if (comparison_) {
    std::optional<v1::Comparison> comparison;
    sim::WorkMeter meter([this] {
      if (turn_ != nullptr) turn_->LetOthers([this] { clock_.Enter(Stage::kQueue); });
      clock_.Enter(Stage::kEncode);
      return !cancellation_->Check().ok();
    });
    const absl::Status ended =
        sim::UntilStopped([&] { comparison = comparison_->End(*result, meter); });
    if (!ended.ok()) return cancellation_->Check();
    if (comparison) SendComparison(*std::move(comparison));
  }
  // An answer of which a part was dropped must not look complete.
  if (dropped_) return cancellation_->Check();
  clock_.Enter(Stage::kNone);
  // The time of this answer: the clock goes on from one to the next.
  const double encode = clock_.seconds(Stage::kEncode);
  context_.metrics->phase_seconds.at("encode").Observe(encode -
                                                       std::exchange(observed_encode_, encode));
  // The engine's compile time is known once it ends well; otherwise it counts as part of the start.
  const sim::PhaseSeconds& seconds = result->seconds;
  record_.Move(Stage::kStart, Stage::kCompile, seconds.compile, started_);
  if (reversed_) {
    record_.Move(Stage::kAdjoint, Stage::kCompile, seconds.compile_adjoint, *reversed_);
  }
  context_.metrics->phase_seconds.at("compile").Observe(prepared_.compile_seconds +
                                                        seconds.compile + seconds.compile_adjoint);
  return absl::OkStatus();
}

}  // namespace simgrad::server::service
