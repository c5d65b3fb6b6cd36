#include "sim/backend/reference/reference_executor.h"

#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/float_environment.h"
#include "sim/backend/check_batch.h"
#include "sim/backend/empty_chunk.h"
#include "sim/backend/reference/instance_run.h"
#include "sim/backend/value_tensors.h"

namespace simgrad::sim {
namespace reference {
namespace {

// Writes an array into a tensor from element `at` on.
void Write(const Array& array, Tensor& tensor, int64_t at) {
  for (double x : array.real) tensor.Set(at++, x);
  for (int64_t n : array.integer) tensor.SetInt(at++, n);
}

// Values are counted whether an adjoint reads them or not, so the counts fit every adjoint.
class ReferenceCounts : public ForwardCounts {
 public:
  int64_t bytes() const override {
    int64_t numbers = 0;
    for (const std::vector<int64_t>& steps : tape_bytes) {
      numbers += static_cast<int64_t>(steps.size());
    }
    return 8 * numbers;
  }
  std::vector<std::vector<int64_t>> tape_bytes;  // [instance][step]
};

class ReferenceRun : public Run {
 public:
  ReferenceRun(Batch batch, RunOptions options)
      : batch_(std::move(batch)),
        options_(std::move(options)),
        program_(*batch_.program),
        layouts_(program_),
        state_inputs_(program_.program.InputsOf(InputKind::kState)),
        meter_(options_.stop) {
    gradients_.resize(program_.program.inputs.size());
    connected_.resize(program_.program.inputs.size());
  }

  // Call it first.
  absl::Status MakeInstances();
  absl::Status Start() override;
  absl::StatusOr<ForwardChunk> Forward(int64_t first, int64_t count) override;
  std::shared_ptr<const void> SaveState() const override;
  void RestoreState(const std::shared_ptr<const void>& saved) override;
  int64_t SavedBytes() const override;
  absl::Status Finish() override;
  absl::Status StartAdjoint(double seed_scale, const InstanceWeights& over) override;
  absl::StatusOr<AdjointChunk> Adjoint(int64_t first, int64_t count) override;
  absl::Status FinishAdjoint() override;
  int64_t AdjointBytes(int64_t first, int64_t count) const override;
  std::shared_ptr<const ForwardCounts> Counts() const override;
  void TakeCounts(const ReferenceCounts& counts);
  Tensor State(int32_t state_input) const override;
  Tensor Export(int32_t export_index) const override;
  std::vector<double> Values() const override;
  const std::vector<uint64_t>& PathSignatures() const override { return signatures_; }
  const std::vector<InstanceHealth>& Health() const override { return health_; }
  std::vector<std::vector<int64_t>> FirstEventSteps() const override;
  const std::vector<double>& Gradient(int32_t input) const override {
    return gradients_[static_cast<size_t>(input)];
  }
  const BlockSums* Sums() const override { return sums_ ? &*sums_ : nullptr; }
  const std::vector<uint8_t>& Connected(int32_t input) const override {
    return connected_[static_cast<size_t>(input)];
  }

 private:
  const Value& ExportValue(int32_t index) const {
    return program_.program[program_.program.exports[static_cast<size_t>(index)].value];
  }
  const Value& StateValue(int32_t input) const {
    return program_.program[program_.program.inputs[static_cast<size_t>(input)].value];
  }
  size_t StateIndex(int32_t input) const;
  void RunSteps(int64_t first, int64_t count, ForwardChunk& chunk);
  void Record(size_t row, size_t column, int64_t count, ForwardChunk& chunk) const;
  void NoteStates(size_t row, size_t sample, StepDiagnostics& diagnostics) const;
  void EachWithSums(int64_t entries, const std::function<void(InstanceRun&)>& reverse);
  void Publish();
  void PublishGradients();
  int64_t CopyWork() const;
  Tensor Collect(const Value& value,
                 const std::function<const Array&(const InstanceRun&)>& array_of) const;

  Batch batch_;
  RunOptions options_;
  const NumericalProgram& program_;
  Layouts layouts_;
  std::vector<int32_t> state_inputs_;
  std::vector<InstanceRun> instances_;
  std::vector<uint64_t> signatures_;
  std::vector<InstanceHealth> health_;
  std::vector<std::vector<double>> gradients_;
  std::vector<std::vector<uint8_t>> connected_;
  std::optional<BlockSums> sums_;
  int64_t waiting_bytes_ = 0;  // of sums for weights, per step
  WorkMeter meter_;
};

absl::Status ReferenceRun::MakeInstances() {
  constexpr int64_t kInstanceWork = 256;
  return UntilStopped([this] {
    instances_.reserve(static_cast<size_t>(batch_.instances));
    for (int64_t row = 0; row < batch_.instances; ++row) {
      meter_.Add(kInstanceWork + batch_.steps);
      instances_.emplace_back(batch_, layouts_, row, options_.near_band_ulps, options_.stop);
    }
    if (!program_.adjoint || BlockSums::WantedOf(program_).empty()) return;
    const InstanceWeights all = WeightsOf(batch_.instance_ids, {}, {}, meter_);
    // The sums that wait, and what one instance gives.
    waiting_bytes_ = 2 * BlockSums(program_, all, 1, 1.0, meter_).BytesPerEntry(1);
  });
}

size_t ReferenceRun::StateIndex(int32_t input) const {
  size_t k = 0;
  while (state_inputs_[k] != input) ++k;
  return k;
}

// Refreshes what callers see of each instance; runs after every call that may change it.
void ReferenceRun::Publish() {
  if (options_.recording == Recording::kNone) return;
  signatures_.clear();
  health_.clear();
  for (const InstanceRun& instance : instances_) {
    signatures_.push_back(instance.state().path.signature);
    health_.push_back(instance.health());
  }
}

absl::Status ReferenceRun::Start() {
  const precision::ScopedFloatEnvironment environment;
  const absl::Status ended = UntilStopped([this] {
    for (InstanceRun& instance : instances_) instance.Start();
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

// The recorded states and exports of one instance after one step of the chunk.
void ReferenceRun::Record(size_t row, size_t column, int64_t count, ForwardChunk& chunk) const {
  const InstanceState& state = instances_[row].state();
  const int64_t cell = static_cast<int64_t>(row) * count + static_cast<int64_t>(column);
  for (size_t k = 0; k < chunk.states.size(); ++k) {
    const Array& array = state.states[StateIndex(options_.record_states[k])];
    Write(array, chunk.states[k], cell * static_cast<int64_t>(SizeOf(array)));
  }
  for (size_t k = 0; k < chunk.exports.size(); ++k) {
    const Array& array = state.exports[static_cast<size_t>(options_.record_exports[k])];
    Write(array, chunk.exports[k], cell * static_cast<int64_t>(SizeOf(array)));
  }
}

void ReferenceRun::NoteStates(size_t row, size_t sample, StepDiagnostics& diagnostics) const {
  size_t real_state = 0;
  for (size_t k = 0; k < state_inputs_.size(); ++k) {
    if (StateValue(state_inputs_[k]).type.element != ElementType::kReal) continue;
    NoteState(instances_[row].state().states[k], StateFormat(program_, state_inputs_[k]),
              diagnostics.states[real_state++][sample]);
  }
}

absl::StatusOr<ForwardChunk> ReferenceRun::Forward(int64_t first, int64_t count) {
  const precision::ScopedFloatEnvironment environment;
  ForwardChunk chunk = EmptyChunk(batch_, options_, options_.stride, first, count);
  const absl::Status ended = UntilStopped([&] { RunSteps(first, count, chunk); });
  if (!ended.ok()) return ended;
  Publish();
  return chunk;
}

void ReferenceRun::RunSteps(int64_t first, int64_t count, ForwardChunk& chunk) {
  const bool counts = options_.recording != Recording::kNone;
  const bool per_instance = options_.recording == Recording::kInstances;
  size_t sample = 0;
  for (int64_t t = first; t < first + count; ++t) {
    const size_t column = static_cast<size_t>(t - first);
    const std::vector<int64_t>& sampled = chunk.diagnostics.sampled_steps;
    const bool samples = sample < sampled.size() && sampled[sample] == t;
    for (size_t row = 0; row < instances_.size(); ++row) {
      StepSinks sinks;
      sinks.decide = counts;
      sinks.ranges = counts ? &chunk.diagnostics.ranges : nullptr;
      sinks.additions = counts && samples ? &chunk.diagnostics.additions : nullptr;
      sinks.column = {counts ? &chunk.diagnostics : nullptr,
                      per_instance ? &chunk.instance_sites : nullptr,
                      column,
                      samples ? std::optional(sample) : std::nullopt,
                      row,
                      instances_.size()};
      instances_[row].Step(t, sinks);
      Record(row, column, count, chunk);
      if (samples) NoteStates(row, sample, chunk.diagnostics);
    }
    sample += samples ? 1 : 0;
  }
}

// A copy of the state of one instance: small arrays, each with memory of its own.
int64_t ReferenceRun::CopyWork() const {
  constexpr int64_t kCopyWork = 64;
  return kCopyWork + SavedBytes() / std::max<int64_t>(batch_.instances, 1) / kBytesPerOperation;
}

std::shared_ptr<const void> ReferenceRun::SaveState() const {
  auto saved = std::make_shared<std::vector<InstanceState>>();
  const int64_t work = CopyWork();
  const absl::Status ended = UntilStopped([&] {
    WorkMeter meter(options_.stop);
    for (const InstanceRun& instance : instances_) {
      meter.Add(work);
      saved->push_back(instance.state());
    }
  });
  return ended.ok() ? saved : nullptr;
}

void ReferenceRun::RestoreState(const std::shared_ptr<const void>& saved) {
  const auto& states = *static_cast<const std::vector<InstanceState>*>(saved.get());
  const int64_t work = CopyWork();
  const absl::Status ended = UntilStopped([&] {
    for (size_t row = 0; row < instances_.size(); ++row) {
      meter_.Add(work);
      instances_[row].set_state(states[row]);
    }
  });
  if (ended.ok()) Publish();
}

int64_t ReferenceRun::SavedBytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof(InstanceState));
  for (int32_t input : state_inputs_) bytes += 8 * ElementCount(StateValue(input).type.shape);
  for (const auto& item : program_.program.exports) {
    bytes += 8 * ElementCount(program_.program[item.value].type.shape);
  }
  for (const Site& site : program_.sites) bytes += site.elements + 8;
  return bytes * batch_.instances;
}

absl::Status ReferenceRun::Finish() {
  const precision::ScopedFloatEnvironment environment;
  const absl::Status ended = UntilStopped([this] {
    for (InstanceRun& instance : instances_) instance.Finish();
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

// Reverses something of every instance, and takes what it gives to weights in so many entries.
void ReferenceRun::EachWithSums(int64_t entries, const std::function<void(InstanceRun&)>& reverse) {
  if (sums_) sums_->Open(entries);
  for (size_t row = 0; row < instances_.size(); ++row) {
    reverse(instances_[row]);
    if (!sums_) continue;
    const int64_t group = static_cast<int64_t>(row);
    for (size_t k = 0; k < sums_->wanted().size(); ++k) {
      const auto& wanted = sums_->wanted()[k];
      const GradientSum& gradient = instances_[row].gradients()[static_cast<size_t>(wanted.input)];
      for (int64_t entry = 0; entry < entries; ++entry) {
        const double* const numbers = gradient.sum.data() + entry * wanted.elements;
        sums_->Give(group, k, entry, numbers, 1, wanted.elements, meter_);
      }
    }
    instances_[row].EndWeights();
    sums_->Ended(group, meter_);
  }
}

absl::Status ReferenceRun::StartAdjoint(double seed_scale, const InstanceWeights& over) {
  if (!program_.adjoint) return absl::FailedPreconditionError("the program has no adjoint");
  const precision::ScopedFloatEnvironment environment;
  sums_.reset();
  const absl::Status ended = UntilStopped([&] {
    if (!BlockSums::WantedOf(program_).empty()) {
      sums_.emplace(program_, over, 1, seed_scale, meter_);
    }
    EachWithSums(1, [&](InstanceRun& instance) { instance.StartAdjoint(seed_scale); });
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<AdjointChunk> ReferenceRun::Adjoint(int64_t first, int64_t count) {
  const precision::ScopedFloatEnvironment environment;
  AdjointChunk chunk;
  chunk.steps.resize(static_cast<size_t>(count));
  const absl::Status ended = UntilStopped([&] {
    EachWithSums(count, [&](InstanceRun& instance) { instance.AdjointSteps(first, count, chunk); });
  });
  if (!ended.ok()) return ended;
  // Cotangents of steps are diagnostics.
  if (options_.recording == Recording::kNone) {
    chunk.steps.assign(static_cast<size_t>(count), BackwardStep{});
  }
  Publish();
  return chunk;
}

absl::Status ReferenceRun::FinishAdjoint() {
  const precision::ScopedFloatEnvironment environment;
  const absl::Status ended = UntilStopped([this] {
    EachWithSums(1, [](InstanceRun& instance) { instance.FinishAdjoint(); });
    PublishGradients();
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

void ReferenceRun::PublishGradients() {
  for (size_t input = 0; input < gradients_.size(); ++input) {
    gradients_[input].clear();
    connected_[input].clear();
    for (const InstanceRun& instance : instances_) {
      const GradientSum& gradient = instance.gradients()[input];
      meter_.Add(1 + static_cast<int64_t>(gradient.sum.size()));
      gradients_[input].insert(gradients_[input].end(), gradient.sum.begin(), gradient.sum.end());
      connected_[input].push_back(gradient.connected ? 1 : 0);
    }
  }
}

int64_t ReferenceRun::AdjointBytes(int64_t first, int64_t count) const {
  int64_t bytes = count * waiting_bytes_;
  for (const InstanceRun& instance : instances_) {
    for (int64_t t = first; t < first + count; ++t) bytes += instance.TapeBytes(t);
  }
  return bytes;
}

std::shared_ptr<const ForwardCounts> ReferenceRun::Counts() const {
  auto counts = std::make_shared<ReferenceCounts>();
  for (const InstanceRun& instance : instances_) {
    counts->tape_bytes.push_back(instance.tape_bytes());
  }
  return counts;
}

void ReferenceRun::TakeCounts(const ReferenceCounts& counts) {
  for (size_t row = 0; row < instances_.size(); ++row) {
    instances_[row].set_tape_bytes(counts.tape_bytes[row]);
  }
}

// A part of it where it is stopped.
Tensor ReferenceRun::Collect(
    const Value& value, const std::function<const Array&(const InstanceRun&)>& array_of) const {
  Tensor tensor = ZerosFor(value, {batch_.instances});
  int64_t at = 0;
  UntilStopped([&] {
    WorkMeter meter(options_.stop);
    for (const InstanceRun& instance : instances_) {
      const Array& array = array_of(instance);
      const auto size = static_cast<int64_t>(SizeOf(array));
      meter.Add(size * kConversionWork);
      Write(array, tensor, at);
      at += size;
    }
  }).IgnoreError();
  return tensor;
}

Tensor ReferenceRun::State(int32_t state_input) const {
  const size_t index = StateIndex(state_input);
  return Collect(StateValue(state_input), [index](const InstanceRun& instance) -> const Array& {
    return instance.state().states[index];
  });
}

Tensor ReferenceRun::Export(int32_t export_index) const {
  const size_t index = static_cast<size_t>(export_index);
  return Collect(ExportValue(export_index), [index](const InstanceRun& instance) -> const Array& {
    return instance.state().exports[index];
  });
}

std::vector<double> ReferenceRun::Values() const {
  std::vector<double> values;
  if (program_.objective.empty()) return values;
  for (const InstanceRun& instance : instances_) values.push_back(instance.state().cost);
  return values;
}

std::vector<std::vector<int64_t>> ReferenceRun::FirstEventSteps() const {
  std::vector<std::vector<int64_t>> steps(CountOf(program_.sites, SiteKind::kEvent));
  for (const InstanceRun& instance : instances_) {
    const std::vector<int64_t>& first = instance.state().path.first_event_steps;
    for (size_t site = 0; site < first.size(); ++site) steps[site].push_back(first[site]);
  }
  return steps;
}

class ReferenceExecutor : public Executor {
 public:
  std::string_view name() const override { return "reference"; }
  absl::StatusOr<std::unique_ptr<Run>> Create(Batch batch, RunOptions options) override {
    if (absl::Status fits = CheckBatch(batch, options.stop); !fits.ok()) return fits;
    auto run = std::make_unique<ReferenceRun>(std::move(batch), std::move(options));
    if (absl::Status made = run->MakeInstances(); !made.ok()) return made;
    return std::unique_ptr<Run>(std::move(run));
  }
  absl::StatusOr<std::unique_ptr<Run>> Adopt(Batch batch, RunOptions options,
                                             const ForwardCounts& counts) override {
    const auto* const own = dynamic_cast<const ReferenceCounts*>(&counts);
    if (own == nullptr) return std::unique_ptr<Run>();
    if (absl::Status fits = CheckBatch(batch, options.stop); !fits.ok()) return fits;
    auto run = std::make_unique<ReferenceRun>(std::move(batch), std::move(options));
    if (absl::Status made = run->MakeInstances(); !made.ok()) return made;
    run->TakeCounts(*own);
    return std::unique_ptr<Run>(std::move(run));
  }
};

}  // namespace
}  // namespace reference

std::unique_ptr<Executor> MakeReferenceExecutor() {
  return std::make_unique<reference::ReferenceExecutor>();
}

}  // namespace simgrad::sim
