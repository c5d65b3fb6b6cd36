#include "sim/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/float_environment.h"
#include "precision/hash.h"
#include "sim/backend/reference/count_arithmetic.h"
#include "sim/engine/births.h"
#include "sim/engine/checkpoints.h"
#include "sim/engine/chunk_size.h"
#include "sim/engine/clip.h"
#include "sim/engine/gate.h"
#include "sim/engine/instance_reduction.h"
#include "sim/engine/kept_run.h"
#include "sim/engine/reversal_budget.h"
#include "sim/engine/solves.h"
#include "sim/engine/stop_latch.h"
#include "sim/program/path_start.h"
#include "sim/program/told.h"

namespace simgrad::sim {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Checks what no executor knows of; every executor checks the batch itself.
absl::Status CheckWork(const Work& work) {
  const size_t weights = work.weights.size();
  if (weights != 0 && weights != work.batch.instance_ids.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(weights, " weights for ", work.batch.instances, " instances"));
  }
  if (work.keep && work.gradient) {
    return absl::InvalidArgumentError("a gradient is not kept; keep the forward pass alone");
  }
  if (work.gradient && work.gradient->clip_norm && !(*work.gradient->clip_norm > 0)) {
    return absl::InvalidArgumentError("a gradient is clipped to a norm that is positive");
  }
  const bool reverses = work.gradient || work.keep;
  if (!reverses || work.batch.program == nullptr) return absl::OkStatus();
  const NumericalProgram& program = *work.batch.program;
  if (!program.adjoint || !program.adjoint_spec) {
    return absl::InvalidArgumentError("a gradient is asked of a program without an adjoint");
  }
  return absl::OkStatus();
}

// The number of an input among those that are summed over blocks, which ascend.
size_t WhichOf(const BlockSums& sums, int32_t input) {
  const std::vector<BlockSums::Wanted>& wanted = sums.wanted();
  const auto found = std::lower_bound(
      wanted.begin(), wanted.end(), input,
      [](const BlockSums::Wanted& one, int32_t number) { return one.input < number; });
  return static_cast<size_t>(found - wanted.begin());
}

// Work that was stopped inside a call of the run ends for the reason that the observer gives.
absl::Status WithReason(const absl::Status& status, WorkPhase phase, Observer& observer) {
  if (!absl::IsCancelled(status)) return status;
  absl::Status why = observer.Continue(phase);
  return why.ok() ? status : why;
}

// One piece of work on its way through the executor.
class Execution {
 public:
  Execution(const Work& work, const ReversalBudget& budget, const StopLatch& latch, Run& run,
            Observer& observer)
      : work_(work),
        latch_(latch),
        meter_(work.options.stop),
        batch_(work.batch),
        numerical_(*work.batch.program),
        run_(run),
        observer_(observer),
        chunk_(work),
        checkpoints_(run, work.checkpoint_interval, budget, work.reserve),
        births_(run, batch_, work.options.recording == Recording::kNone ? 0 : work.max_certificates,
                work.options.stop) {}

  // `kept` null: forward, and in reverse where the work asks for a gradient. Else in reverse only.
  absl::StatusOr<WorkResult> Go(const KeptRun* kept);

 private:
  absl::StatusOr<WorkResult> GoThrough(const KeptRun* kept);
  // Asks the observer whether to go on.
  absl::Status Continue(WorkPhase phase);
  // Whether the work was stopped, or results could not be read: asked after calls that cannot say so.
  absl::Status WasEnded() const {
    return latch_.stopped() ? StopRequested::Status() : run_.Failed();
  }
  absl::Status Start();
  absl::Status Forward();
  absl::Status Reverse();
  absl::Status ReverseOver(const InstanceWeights& over, bool again);
  void Keep();
  absl::Status Resume(const KeptRun& kept);
  bool saves() const { return work_.gradient || work_.keep; }
  absl::Status Advance(int64_t from, int64_t to, int64_t end);
  absl::Status TakeForwardResults();
  void TakeAdjointHealth();
  void TakeGradients();
  void Clip();
  absl::Status NameGates();
  absl::Status CountArithmetic();
  InputGradient GradientOf(int32_t input, const InstanceWeights& weights);
  InstanceWeights Weights(bool of_gradients);

  const Work& work_;
  const StopLatch& latch_;
  WorkMeter meter_;
  const Batch& batch_;
  const NumericalProgram& numerical_;
  Run& run_;
  Observer& observer_;
  ChunkSize chunk_;
  Checkpoints checkpoints_;
  Births births_;
  Decided decided_;
  WorkPhase phase_ = WorkPhase::kForward;
  WorkResult result_;
};

absl::Status Execution::Continue(WorkPhase phase) {
  phase_ = phase;
  return observer_.Continue(phase);
}

absl::Status Execution::Start() {
  if (saves()) {
    if (absl::Status fits = checkpoints_.CheckLeast(); !fits.ok()) return fits;
  }
  if (absl::Status status = run_.Start(); !status.ok()) return status;
  std::vector<Tensor> recorded;
  for (int32_t input : work_.options.record_states) recorded.push_back(run_.State(input));
  if (absl::Status status = WasEnded(); !status.ok()) return status;
  observer_.OnStart(recorded);
  return absl::OkStatus();
}

absl::Status Execution::Forward() {
  for (int64_t t = 0; t < batch_.steps;) {
    if (absl::Status status = Continue(WorkPhase::kForward); !status.ok()) return status;
    int64_t count = std::min(chunk_.steps(), batch_.steps - t);
    if (saves()) {
      if (absl::Status status = checkpoints_.Visit(t); !status.ok()) return status;
      count = std::min(count, checkpoints_.NextDue(t + 1) - t);
    }
    births_.BeforeChunk(t, checkpoints_.StateAt(t));
    if (absl::Status status = WasEnded(); !status.ok()) return status;
    const Clock::time_point start = Clock::now();
    observer_.OnChunk(WorkPhase::kForward, count);
    absl::StatusOr<ForwardChunk> chunk = run_.Forward(t, count);
    if (!chunk.ok()) return chunk.status();
    const double seconds = SecondsSince(start);
    births_.AfterChunk();
    if (absl::Status status = WasEnded(); !status.ok()) return status;
    if (saves()) decided_.Add(numerical_.sites, chunk->diagnostics);
    chunk_.Took(count, seconds);
    result_.seconds.forward += seconds;
    t += count;
    result_.steps_done = t;
    result_.forward_steps += count * batch_.instances;
    observer_.OnForward(*chunk);
  }
  return run_.Finish();
}

absl::Status Execution::TakeForwardResults() {
  for (int32_t input : numerical_.program.InputsOf(InputKind::kState)) {
    result_.final_states.push_back(run_.State(input));
  }
  if (const std::optional<size_t> place = StatesBeforePathStart(numerical_.program)) {
    result_.final_states.erase(result_.final_states.begin() + static_cast<int64_t>(*place));
  }
  if (!numerical_.halts.empty()) {
    const Tensor halted = std::move(result_.final_states.back());
    result_.final_states.pop_back();
    for (int64_t row = 0; row < halted.count(); ++row) {
      result_.halts.push_back(HaltOf(halted.GetInt(row)));
    }
  }
  result_.health = run_.Health();
  result_.path_signatures = run_.PathSignatures();
  for (size_t row = 0; row < result_.path_signatures.size(); ++row) {
    result_.batch_path_signature +=
        precision::BatchTerm(result_.path_signatures[row], batch_.instance_ids[row]);
  }
  result_.first_event_steps = run_.FirstEventSteps();
  result_.values = run_.Values();
  return WasEnded();
}

// After the forward results are taken; what is stopped here keeps nothing, and ends.
void Execution::Keep() {
  auto kept = std::make_shared<KeptRun>();
  kept->batch = batch_;
  kept->batch.cotangents = {};
  kept->options = work_.options;
  kept->options.stop = {};
  kept->options.record_states.clear();  // told once, by the forward pass
  kept->options.record_exports.clear();
  std::shared_ptr<const void> end = run_.SaveState();
  kept->counts = run_.Counts();
  if (kept->counts != nullptr) {
    kept->saved = checkpoints_.Saved();
    kept->end = std::move(end);
  }
  kept->decided = decided_;
  kept->chunk_steps = chunk_.steps();
  kept->arithmetic_instances = work_.arithmetic_instances;
  kept->births = births_.starts();
  kept->forward = result_;
  kept->forward.final_states.clear();
  kept->bytes = KeptBytes(*kept, run_.SavedBytes());
  result_.kept = std::move(kept);
}

// Takes over what the forward pass of a kept run saved and found.
absl::Status Execution::Resume(const KeptRun& kept) {
  result_ = kept.forward;
  result_.seconds = {};
  result_.forward_steps = result_.recompute_steps = 0;
  decided_ = kept.decided;
  births_.TakeStarts(kept.births);
  chunk_.StartAt(kept.chunk_steps);
  checkpoints_.Adopt(kept.saved);
  run_.RestoreState(kept.end);
  return WasEnded();
}

// Runs forward again, without counting, from the checkpoint at `from` to the range [to, end), which
// is to be reversed.
absl::Status Execution::Advance(int64_t from, int64_t to, int64_t end) {
  const int64_t tape = run_.AdjointBytes(to, end - to);
  int64_t due = checkpoints_.NextInReverse(from, to, end, tape);
  while (from < to) {
    if (absl::Status status = Continue(WorkPhase::kRecompute); !status.ok()) {
      return status;
    }
    const int64_t count = std::min(chunk_.steps(), due - from);
    const Clock::time_point start = Clock::now();
    observer_.OnChunk(WorkPhase::kRecompute, count);
    if (const auto chunk = run_.Forward(from, count); !chunk.ok()) return chunk.status();
    result_.seconds.recompute += SecondsSince(start);
    result_.recompute_steps += count * batch_.instances;
    observer_.OnRecompute(count);
    from += count;
    if (from == due && from < to) {
      checkpoints_.Save(from);
      due = checkpoints_.NextInReverse(from, to, end, tape);
    }
    if (absl::Status status = WasEnded(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Execution::Reverse() {
  if (absl::Status fits = checkpoints_.CheckReversal(batch_.steps, meter_); !fits.ok()) return fits;
  result_.loss_scale = numerical_.policy.loss_scale;
  const bool sums = !BlockSums::WantedOf(numerical_).empty();
  const bool only_finite = work_.gradient->reduction == InstanceReduction::kFiniteOnly;
  const std::shared_ptr<const void> end = sums && only_finite ? run_.SaveState() : nullptr;
  // A run that was stopped has no state to come back to.
  if (absl::Status status = WasEnded(); !status.ok()) return status;
  InstanceWeights over;
  const auto weigh = [&] { return UntilStopped([&] { over = Weights(true); }); };
  if (absl::Status weighed = sums ? weigh() : absl::OkStatus(); !weighed.ok()) return weighed;
  if (absl::Status status = ReverseOver(over, false); !status.ok()) return status;
  if (end == nullptr) return absl::OkStatus();
  // The reversal tells which instances are not finite, and what these gave to weights is in sums
  // already: where there are any, it runs again over the others.
  TakeAdjointHealth();
  const size_t before = over.rows.size();
  if (absl::Status weighed = weigh(); !weighed.ok()) return weighed;
  if (over.rows.size() == before) return absl::OkStatus();
  run_.RestoreState(end);
  return ReverseOver(over, true);
}

// `again`: the records of the reversal are known, and it gives gradients alone.
absl::Status Execution::ReverseOver(const InstanceWeights& over, bool again) {
  if (absl::Status status = Continue(WorkPhase::kAdjoint); !status.ok()) return status;
  const Clock::time_point begin = Clock::now();
  if (absl::Status status = run_.StartAdjoint(result_.loss_scale, over); !status.ok()) {
    return status;
  }
  if (!again) result_.seconds.compile_adjoint = SecondsSince(begin);
  if (work_.gradient->tell_steps) {
    absl::Status made = UntilStopped(
        [&] { ResizeInPieces(meter_, result_.backward, static_cast<size_t>(batch_.steps)); });
    if (!made.ok()) return made;
  }
  for (int64_t end = batch_.steps; end > 0;) {
    const absl::StatusOr<int64_t> first = checkpoints_.RangeBefore(end, chunk_.steps());
    if (!first.ok()) return first.status();
    const int64_t count = end - *first;
    const int64_t from = checkpoints_.RestoreBefore(*first);
    absl::Status status = WasEnded();
    if (status.ok()) status = Advance(from, *first, end);
    if (status.ok()) status = Continue(WorkPhase::kAdjoint);
    if (!status.ok()) return status;
    const Clock::time_point start = Clock::now();
    observer_.OnChunk(WorkPhase::kAdjoint, count);
    absl::StatusOr<AdjointChunk> chunk = run_.Adjoint(*first, count);
    if (!chunk.ok()) return chunk.status();
    result_.seconds.adjoint += SecondsSince(start);
    result_.adjoint_steps += count * batch_.instances;
    result_.recompute_steps += count * batch_.instances;  // the record of the range
    observer_.OnRecompute(count);
    for (int64_t k = 0; k < count && !again; ++k) {
      const BackwardStep& step = chunk->steps[static_cast<size_t>(k)];
      result_.nonfinite_cotangents += step.nonfinite;
      if (work_.gradient->tell_steps) result_.backward[static_cast<size_t>(*first + k)] = step;
    }
    if (!again) {
      result_.adjoint_ranges.Merge(chunk->ranges);
      observer_.OnAdjoint(*first, *chunk);
    }
    end = *first;
  }
  return run_.FinishAdjoint();
}

// The forward run's health stands; the adjoint adds what it found in instances that were ok.
void Execution::TakeAdjointHealth() {
  const std::vector<InstanceHealth>& now = run_.Health();
  for (size_t row = 0; row < result_.health.size() && row < now.size(); ++row) {
    const bool found = !now[row].ok && now[row].phase == Phase::kAdjoint;
    if (result_.health[row].ok && found) result_.health[row] = now[row];
  }
}

// The weights of gradients, or of values. An instance that a halt ended with an error has no
// gradient.
InstanceWeights Execution::Weights(bool of_gradients) {
  const bool only_finite =
      work_.gradient && work_.gradient->reduction == InstanceReduction::kFiniteOnly;
  std::vector<bool> leave_out(batch_.instance_ids.size(), false);
  result_.left_out = 0;
  result_.overflowed = 0;
  for (size_t row = 0; row < leave_out.size(); ++row) {
    const bool is_out = only_finite && !result_.health.empty() && !result_.health[row].ok;
    result_.left_out += is_out ? 1 : 0;
    const bool overflowed = is_out && result_.health[row].phase == Phase::kAdjoint;
    result_.overflowed += overflowed && result_.loss_scale != 1 ? 1 : 0;
    const bool failed =
        of_gradients && !result_.halts.empty() && result_.halts[row] && result_.halts[row]->error;
    leave_out[row] = is_out || failed;
  }
  return WeightsOf(batch_.instance_ids, work_.weights, leave_out, meter_);
}

InputGradient Execution::GradientOf(int32_t input, const InstanceWeights& weights) {
  const Binding& binding = batch_.inputs[static_cast<size_t>(input)];
  const precision::RoleSetting& setting = numerical_.policy[Role::kGradient];
  const std::vector<double>& raw = run_.Gradient(input);
  const bool keep_tree = work_.gradient->return_tree;
  const bool sums = numerical_.program.inputs[static_cast<size_t>(input)].weights;
  ReducedGradient reduced;
  GradientMagnitudes magnitudes;
  if (sums) {
    const size_t which = WhichOf(*run_.Sums(), input);
    reduced = GradientOfBlocks(*run_.Sums(), which, weights, setting, result_.loss_scale, keep_tree,
                               meter_);
    magnitudes = run_.Sums()->Magnitudes(which);
  } else {
    reduced = binding.per_instance
                  ? PerInstanceGradient(raw, weights, setting, result_.loss_scale, meter_)
                  : SharedGradient(raw, weights, setting, result_.loss_scale, keep_tree, meter_);
    magnitudes = MagnitudesOf(raw, weights, setting, result_.loss_scale, meter_);
  }
  result_.skipped = result_.skipped || !reduced.finite;
  InputGradient gradient;
  gradient.input = input;
  Shape shape;
  if (binding.per_instance) shape.push_back(batch_.instances);
  if (binding.per_step) shape.push_back(batch_.steps);
  const Program& program = numerical_.program;
  const Shape& declared = program[program.inputs[static_cast<size_t>(input)].value].type.shape;
  shape.insert(shape.end(), declared.begin(), declared.end());
  gradient.gradient = Tensor::Zeros(DTypeOf(setting.format), std::move(shape));
  for (size_t k = 0; k < reduced.values.size(); ++k) {
    meter_.Add(kConversionWork);
    gradient.gradient.Set(static_cast<int64_t>(k), reduced.values[k]);
  }
  gradient.magnitudes = magnitudes;
  for (size_t row : weights.rows) gradient.connected += run_.Connected(input)[row] != 0 ? 1 : 0;
  gradient.tree = std::move(reduced.tree);
  return gradient;
}

// Names the site that kept an input from being used, where there are such inputs.
absl::Status Execution::NameGates() {
  const auto unused = [](const InputGradient& gradient) { return gradient.connected == 0; };
  if (std::none_of(result_.gradients.begin(), result_.gradients.end(), unused)) {
    return absl::OkStatus();
  }
  PassBudget budget(work_.options.stop);
  const absl::StatusOr<Gates> gates = Gates::Find(numerical_.program, decided_, &budget);
  if (!gates.ok()) return gates.status();
  for (InputGradient& gradient : result_.gradients) {
    if (unused(gradient)) gradient.gated_by = gates->Of(gradient.input);
  }
  return absl::OkStatus();
}

void Execution::Clip() {
  if (!work_.gradient->clip_norm) return;
  std::vector<Tensor*> gradients;
  for (InputGradient& gradient : result_.gradients) gradients.push_back(&gradient.gradient);
  result_.norm = ClipToNorm(*work_.gradient->clip_norm, numerical_.policy[Role::kGradient].format,
                            gradients, meter_);
}

void Execution::TakeGradients() {
  TakeAdjointHealth();
  const InstanceWeights weights = Weights(true);
  for (size_t i = 0; i < numerical_.program.inputs.size(); ++i) {
    if (i >= UntoldInputs(numerical_) || !numerical_.adjoint_spec->wanted[i]) continue;
    result_.gradients.push_back(GradientOf(static_cast<int32_t>(i), weights));
  }
  result_.skipped = result_.skipped || result_.overflowed > 0;
  Clip();
  result_.adjoint_solves = SolvesOf(numerical_, run_);
  result_.unconverged = decided_.UnconvergedOf(numerical_.adjoint_spec->loops);
  if (!result_.values.empty()) {
    result_.value =
        WeightedValue(result_.values, Weights(false), numerical_.policy[Role::kObjective], meter_);
  }
}

absl::Status Execution::CountArithmetic() {
  const auto before_instance = [this](int64_t counted, int64_t instances) {
    observer_.OnArithmetic(counted, instances);
    return Continue(WorkPhase::kArithmetic);
  };
  const ArithmeticOptions options = {.instances = work_.arithmetic_instances,
                                     .stride = work_.options.stride,
                                     .adjoint = work_.gradient.has_value(),
                                     .seed_scale = numerical_.policy.loss_scale,
                                     .before_instance = before_instance,
                                     .memory_budget_bytes = work_.memory_budget_bytes,
                                     .reserve = work_.reserve};
  const Clock::time_point start = Clock::now();
  absl::StatusOr<Arithmetic> counted = sim::CountArithmetic(batch_, options, work_.options.stop);
  result_.seconds.arithmetic = SecondsSince(start);
  if (counted.ok()) result_.arithmetic = *std::move(counted);
  return counted.status();
}

absl::StatusOr<WorkResult> Execution::Go(const KeptRun* kept) {
  absl::StatusOr<WorkResult> result = GoThrough(kept);
  if (!result.ok()) return WithReason(result.status(), phase_, observer_);
  return result;
}

absl::StatusOr<WorkResult> Execution::GoThrough(const KeptRun* kept) {
  if (kept != nullptr) {
    if (absl::Status status = Resume(*kept); !status.ok()) return status;
  } else {
    if (absl::Status status = Start(); !status.ok()) return status;
    if (absl::Status status = Forward(); !status.ok()) return status;
    if (absl::Status status = TakeForwardResults(); !status.ok()) return status;
  }
  if (work_.keep) {
    Keep();
    if (absl::Status status = WasEnded(); !status.ok()) return status;
  }
  if (work_.gradient) {
    if (absl::Status status = Reverse(); !status.ok()) return status;
  }
  const absl::Status taken = UntilStopped([this] {
    if (work_.gradient) {
      TakeGradients();
    } else if (!result_.values.empty()) {
      result_.value = WeightedValue(result_.values, Weights(false),
                                    numerical_.policy[Role::kObjective], meter_);
    }
  });
  if (!taken.ok()) return taken;
  if (absl::Status status = WasEnded(); !status.ok()) return status;
  if (work_.gradient) {
    if (absl::Status status = NameGates(); !status.ok()) return status;
  }
  absl::StatusOr<std::vector<BirthCertificate>> certificates =
      births_.Write(result_.health, numerical_.policy.loss_scale);
  if (!certificates.ok()) return certificates.status();
  result_.certificates = *std::move(certificates);
  if (work_.arithmetic_instances > 0) {
    if (absl::Status status = CountArithmetic(); !status.ok()) return status;
  }
  return std::move(result_);
}

}  // namespace

int64_t MostStepsOfAChunk(const Work& work) {
  // Above this a chunk saves nothing more by being longer.
  constexpr int64_t kEnough = 1024;
  const int64_t wanted = work.chunk_steps > 0 ? work.chunk_steps : kEnough;
  return std::max<int64_t>(1, std::min(wanted, work.max_chunk_steps));
}

Engine::Engine(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

absl::StatusOr<WorkResult> Engine::Execute(Work work, Observer& observer) const {
  return Perform(std::move(work), nullptr, observer);
}

absl::StatusOr<WorkResult> Engine::Reverse(const KeptRun& kept, Work work,
                                           Observer& observer) const {
  if (!work.gradient || work.keep) {
    return absl::InvalidArgumentError("what was kept is reversed for a gradient");
  }
  return Perform(std::move(work), &kept, observer);
}

absl::StatusOr<WorkResult> Engine::Perform(Work work, const KeptRun* kept,
                                           Observer& observer) const {
  // For all that is computed on the caller's thread: inputs and results are converted there too.
  const precision::ScopedFloatEnvironment environment;
  if (absl::Status fits = CheckWork(work); !fits.ok()) return fits;
  const StopLatch latch(std::move(work.options.stop));
  work.options.stop = latch.Callback();
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::unique_ptr<Run>> run = std::unique_ptr<Run>();
  if (kept != nullptr && kept->counts != nullptr &&
      RunsForwardAlike(*kept->batch.program, *work.batch.program)) {
    run = executor_->Adopt(work.batch, work.options, *kept->counts);
  }
  const KeptRun* const adopted = run.ok() && *run != nullptr ? kept : nullptr;
  if (run.ok() && *run == nullptr) run = executor_->Create(work.batch, work.options);
  if (!run.ok()) return WithReason(run.status(), WorkPhase::kForward, observer);
  const double compile = SecondsSince(start);
  const auto need =
      NeedForItsRanges(work, [&run](const RangeSteps& steps) { return (*run)->NeedOf(steps); });
  if (!need.ok()) return need.status();
  const ReversalBudget budget = ReversalBudgetOf(work, *need, (*run)->SavedBytes());
  absl::StatusOr<WorkResult> result = Execution(work, budget, latch, **run, observer).Go(adopted);
  if (!result.ok()) return result;
  result->seconds.compile = compile;
  if (kept != nullptr) {
    result->final_states.clear();
    result->arithmetic.forward.clear();
  }
  return result;
}

}  // namespace simgrad::sim
