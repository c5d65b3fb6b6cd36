#include "sim/backend/cpu/cpu_run.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "precision/rounding.h"
#include "sim/backend/cpu/memory_need.h"
#include "sim/backend/empty_chunk.h"
#include "sim/backend/value_tensors.h"

namespace simgrad::sim::cpu {
namespace {

std::shared_ptr<const Plan> ForwardPlan(const Batch& batch, const RunOptions& options,
                                        PlanCache& plans) {
  const bool counts = options.recording != Recording::kNone;
  const bool stops = batch.program->policy.nonfinite == precision::NonFinite::kStop;
  return plans.Get(batch.program, InputReader::FormsOf(batch),
                   {.diagnostics = counts, .looks = counts || stops, .adjoint = false},
                   options.stop);
}

// Margins that no other takes the place of: then only tests near their thresholds are looked at.
void GiveSmallestMargins(StepDiagnostics& diagnostics) {
  for (std::vector<TerminationStep>& column : diagnostics.terminations) {
    for (TerminationStep& step : column) step.margin = {0.0, 0, 0.0, 0, true};
  }
}

}  // namespace

CpuRun::CpuRun(Batch batch, RunOptions options, std::shared_ptr<PlanCache> plans,
               int64_t block_width)
    : batch_(std::move(batch)),
      options_(std::move(options)),
      plans_(std::move(plans)),
      plan_(ForwardPlan(batch_, options_, *plans_)),
      context_(MakeContext(block_width)),
      pool_(ThreadsOf(options_, context_.layout)) {
  runners_.resize(static_cast<size_t>(pool_.threads()));
  adjoints_.resize(static_cast<size_t>(pool_.threads()));
  blocks_.resize(static_cast<size_t>(context_.layout.blocks()));
  record_bytes_.assign(static_cast<size_t>(batch_.steps), 0);
  const size_t inputs = batch_.program->program.inputs.size();
  published_.values.resize(inputs);
  published_.connected.resize(inputs);
}

RunContext CpuRun::MakeContext(int64_t block_width) {
  const bool counts = options_.recording != Recording::kNone;
  const bool stops = batch_.program->policy.nonfinite == precision::NonFinite::kStop;
  const int64_t width =
      block_width > 0 ? block_width
                      : ChooseBlockWidth(plan_->varying_bytes, batch_.instances, options_.threads);
  return {batch_,
          options_,
          *batch_.program,
          BlockLayout(*batch_.program, batch_.instances, width),
          InputReader(batch_),
          counts,
          counts || stops,
          stops,
          batch_.program->adjoint.has_value()};
}

BlockRunner& CpuRun::RunnerOf(int worker) {
  std::unique_ptr<BlockRunner>& runner = runners_[static_cast<size_t>(worker)];
  if (!runner) runner = std::make_unique<BlockRunner>(context_, *plan_);
  return *runner;
}

BlockAdjoint& CpuRun::AdjointOf(int worker) {
  std::unique_ptr<BlockAdjoint>& runner = adjoints_[static_cast<size_t>(worker)];
  if (!runner) runner = std::make_unique<BlockAdjoint>(context_, *adjoint_plan_);
  return *runner;
}

absl::Status CpuRun::ForBlocks(const std::function<void(int, int64_t)>& work) {
  return UntilStopped([&] { pool_.ParallelFor(context_.layout.blocks(), work); });
}

absl::Status CpuRun::Start() {
  const absl::Status ended = ForBlocks([this](int worker, int64_t block) {
    RunnerOf(worker).Start(block, blocks_[static_cast<size_t>(block)]);
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<ForwardChunk> CpuRun::Forward(int64_t first, int64_t count) {
  const bool extremes = options_.recording != Recording::kCounts;
  constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  ForwardChunk chunk =
      EmptyChunk(batch_, options_, extremes ? options_.stride : kNever, first, count);
  if (!extremes) GiveSmallestMargins(chunk.diagnostics);
  const size_t workers = static_cast<size_t>(pool_.threads());
  // The first worker counts in the chunk itself.
  std::vector<StepDiagnostics> others(workers - 1, chunk.diagnostics);
  std::vector<std::vector<int64_t>> bytes(workers);
  const absl::Status ended = ForBlocks([&](int worker, int64_t block) {
    const size_t w = static_cast<size_t>(worker);
    if (context_.sizes) bytes[w].resize(record_bytes_.size());
    const ChunkOutput output = {first, count, w == 0 ? &chunk.diagnostics : &others[w - 1], &chunk,
                                context_.sizes ? bytes[w].data() : nullptr};
    RunnerOf(worker).Forward(block, blocks_[static_cast<size_t>(block)], output);
  });
  if (!ended.ok()) return ended;
  if (context_.counts) {
    for (const StepDiagnostics& part : others) chunk.diagnostics.Merge(part);
  }
  for (const std::vector<int64_t>& part : bytes) {
    for (size_t t = 0; t < part.size(); ++t) {
      record_bytes_[t] = std::max(record_bytes_[t], part[t]);
    }
  }
  Publish();
  return chunk;
}

std::shared_ptr<const void> CpuRun::SaveState() const {
  auto saved = std::make_shared<std::vector<BlockState>>();
  return CopyBlocks(blocks_, *saved) ? saved : nullptr;
}

void CpuRun::RestoreState(const std::shared_ptr<const void>& saved) {
  if (CopyBlocks(*static_cast<const std::vector<BlockState>*>(saved.get()), blocks_)) Publish();
}

// False where the run was asked to stop; `to` has blocks of the same sizes, or none.
bool CpuRun::CopyBlocks(const std::vector<BlockState>& from, std::vector<BlockState>& to) const {
  WorkMeter meter(options_.stop);
  return UntilStopped([&] {
           to.resize(from.size());
           for (size_t b = 0; b < from.size(); ++b) {
             std::vector<std::byte>& numbers = to[b].numbers;
             if (numbers.empty()) ResizeInPieces(meter, numbers, from[b].numbers.size());
             CopyInPieces(meter, numbers.data(), from[b].numbers.data(),
                          static_cast<int64_t>(numbers.size()));
             to[b].path = from[b].path;
             to[b].health = from[b].health;
             to[b].not_ok = from[b].not_ok;
             to[b].stopped = from[b].stopped;
           }
         })
      .ok();
}

int64_t CpuRun::SavedBytes() const {
  return CheckpointBytes(*batch_.program, context_.layout, batch_.instances);
}

absl::Status CpuRun::Finish() {
  const absl::Status ended = ForBlocks([this](int worker, int64_t block) {
    RunnerOf(worker).Finish(block, blocks_[static_cast<size_t>(block)]);
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

absl::Status CpuRun::StartAdjoint(double seed_scale) {
  const NumericalProgram& program = *batch_.program;
  if (!program.adjoint) return absl::FailedPreconditionError("the program has no adjoint");
  seed_ = precision::RoundTo(program.policy[precision::Role::kObjective].format, seed_scale);
  const absl::Status prepared = UntilStopped([this] {
    if (!adjoint_plan_) adjoint_plan_ = AdjointPlan();
    MakeGradients();
  });
  if (!prepared.ok()) return prepared;
  adjoint_blocks_.resize(blocks_.size());
  const absl::Status ended = ForBlocks([this](int worker, int64_t block) {
    const size_t b = static_cast<size_t>(block);
    AdjointOf(worker).Start(block, blocks_[b], adjoint_blocks_[b], seed_, gradients_);
  });
  if (!ended.ok()) return ended;
  Publish();
  return absl::OkStatus();
}

std::shared_ptr<const Plan> CpuRun::AdjointPlan() const {
  return plans_->Get(batch_.program, InputReader::FormsOf(batch_),
                     {.diagnostics = false, .looks = context_.looks, .adjoint = true},
                     options_.stop);
}

void CpuRun::MakeGradients() {
  WorkMeter meter(options_.stop);
  const NumericalProgram& program = *batch_.program;
  const std::vector<Input>& inputs = program.program.inputs;
  gradients_ = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t count = ElementCount(program.program[inputs[i].value].type.shape);
    const int64_t entries = batch_.instances * (context_.IsSummedPerStep(i) ? batch_.steps : 1);
    const bool wanted = program.adjoint_spec->wanted[i];
    ResizeInPieces(meter, gradients_.values.emplace_back(),
                   wanted ? static_cast<size_t>(entries * count) : 0);
    gradients_.connected.emplace_back(static_cast<size_t>(batch_.instances), uint8_t{0});
  }
}

absl::StatusOr<AdjointChunk> CpuRun::Adjoint(int64_t first, int64_t count) {
  AdjointChunk chunk;
  chunk.steps.resize(static_cast<size_t>(count));
  std::vector<AdjointChunk> parts(static_cast<size_t>(pool_.threads()), chunk);
  const absl::Status ended = ForBlocks([&](int worker, int64_t block) {
    const size_t b = static_cast<size_t>(block);
    AdjointOf(worker).Reverse(block, blocks_[b], adjoint_blocks_[b], seed_, first, count,
                              parts[static_cast<size_t>(worker)], gradients_);
  });
  if (!ended.ok()) return ended;
  for (const AdjointChunk& part : parts) {
    for (size_t t = 0; t < chunk.steps.size(); ++t) chunk.steps[t].Merge(part.steps[t]);
    chunk.ranges.Merge(part.ranges);
  }
  Publish();
  return chunk;
}

absl::Status CpuRun::FinishAdjoint() {
  const absl::Status ended = ForBlocks([this](int worker, int64_t block) {
    const size_t b = static_cast<size_t>(block);
    AdjointOf(worker).Finish(block, blocks_[b], adjoint_blocks_[b], gradients_);
  });
  if (!ended.ok()) return ended;
  published_ = std::move(gradients_);
  Publish();
  return absl::OkStatus();
}

int64_t CpuRun::AdjointBytes(int64_t first, int64_t count) const {
  int64_t all = 0;
  int64_t largest = 0;
  for (int64_t t = first; t < first + count; ++t) {
    const int64_t bytes = record_bytes_[static_cast<size_t>(t)];
    all += bytes;
    largest = std::max(largest, bytes);
  }
  return RangeRecordBytes(context_.layout, pool_.threads(), {count, all, largest});
}

std::optional<MemoryNeed> CpuRun::NeedOf(const RangeSteps& steps) const {
  return NeedOfPlans(batch_, options_, steps, context_.layout, *plan_, adjoint_plan_.get());
}

void CpuRun::Publish() {
  if (!context_.counts) return;
  signatures_.clear();
  health_.clear();
  const bool reversed = !adjoint_blocks_.empty();
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const BlockState& block = blocks_[b];
    const std::vector<InstanceHealth>& health = reversed ? adjoint_blocks_[b].health : block.health;
    const int64_t lanes = context_.layout.Lanes(static_cast<int64_t>(b));
    const auto first = block.path.signature.begin();
    signatures_.insert(signatures_.end(), first, first + static_cast<std::ptrdiff_t>(lanes));
    health_.insert(health_.end(), health.begin(), health.end());
    health_.resize(signatures_.size());
  }
}

Tensor CpuRun::Collect(int32_t s, int64_t offset, const Value& value) const {
  const Slot& slot = plan_->slots[static_cast<size_t>(s)];
  Tensor tensor = ZerosFor(value, {batch_.instances});
  const BlockLayout& layout = context_.layout;
  WorkMeter meter(options_.stop);
  // What a run that was stopped answers does not matter.
  UntilStopped([&] {
    for (int64_t block = 0; block < layout.blocks(); ++block) {
      const BlockState& state = blocks_[static_cast<size_t>(block)];
      const int64_t width = layout.PaddedLanes(block);
      for (int64_t lane = 0; lane < layout.Lanes(block); ++lane) {
        WriteTensorRow(tensor, (layout.FirstRow(block) + lane) * slot.count, slot,
                       state.numbers.data() + offset * width, width, lane, meter);
      }
    }
  }).IgnoreError();
  return tensor;
}

Tensor CpuRun::State(int32_t state_input) const {
  const Program& p = batch_.program->program;
  const std::vector<int32_t> states = p.InputsOf(InputKind::kState);
  const size_t k =
      static_cast<size_t>(std::find(states.begin(), states.end(), state_input) - states.begin());
  return Collect(plan_->states[k].slot, context_.layout.state(k),
                 p[p.inputs[static_cast<size_t>(state_input)].value]);
}

Tensor CpuRun::Export(int32_t export_index) const {
  const Program& p = batch_.program->program;
  const size_t k = static_cast<size_t>(export_index);
  return Collect(plan_->exports[k], context_.layout.exported(k), p[p.exports[k].value]);
}

std::vector<double> CpuRun::Values() const {
  std::vector<double> values;
  if (batch_.program->objective.empty()) return values;
  const Format format = batch_.program->policy[precision::Role::kObjective].format;
  const Carrier carrier = format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
  const BlockLayout& layout = context_.layout;
  for (int64_t block = 0; block < layout.blocks(); ++block) {
    const std::byte* const cost = blocks_[static_cast<size_t>(block)].numbers.data() +
                                  layout.cost() * layout.PaddedLanes(block);
    for (int64_t lane = 0; lane < layout.Lanes(block); ++lane) {
      values.push_back(precision::Canonical(LoadReal(cost, carrier, lane)));
    }
  }
  return values;
}

std::vector<std::vector<int64_t>> CpuRun::FirstEventSteps() const {
  std::vector<std::vector<int64_t>> steps(CountOf(batch_.program->sites, SiteKind::kEvent));
  if (!context_.counts) {
    for (auto& site : steps) site.assign(static_cast<size_t>(batch_.instances), -1);
    return steps;
  }
  for (const BlockState& block : blocks_) {
    for (size_t site = 0; site < steps.size(); ++site) {
      const std::vector<int64_t>& first = block.path.first_event[site];
      steps[site].insert(steps[site].end(), first.begin(), first.end());
    }
  }
  return steps;
}

}  // namespace simgrad::sim::cpu
