#include "sim/backend/cpu/block_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "precision/arithmetic.h"
#include "precision/rounding.h"

namespace simgrad::sim::cpu {
namespace {

bool IsReal(const Slot& slot) {
  return slot.carrier == Carrier::kF32 || slot.carrier == Carrier::kF64;
}

}  // namespace

BlockRunner::BlockRunner(const RunContext& context, const Plan& plan)
    : context_(context),
      m_(plan, context.layout.width(), WorkMeter(context.options.stop)),
      sites_(context.options),
      every_lane_(static_cast<size_t>(context.layout.width()), -1),
      cost_before_(static_cast<size_t>(context.layout.width()) * 8),
      cost_format_(context.program.policy[precision::Role::kObjective].format),
      cost_carrier_(cost_format_ == Format::kF64 ? Carrier::kF64 : Carrier::kF32) {
  m_.looks = context.looks;
  context.reader.LoadUniform(m_);
  m_.RunInPieces(plan.per_run);
}

LaneSet BlockRunner::RunningLanes() const {
  LaneSet set;
  set.width = rows_.width;
  set.running = LaneBits::First(rows_.width);
  if (state_->stopped.Any()) {
    set.running = set.running - state_->stopped;
    // Padding repeats the last lane, and stops with it.
    if (state_->stopped.Has(rows_.lanes - 1)) {
      set.running = set.running & LaneBits::First(rows_.lanes);
    }
    set.all_running = false;
  }
  set.counted = LaneBits::First(rows_.lanes) & set.running;
  return set;
}

void BlockRunner::Load(int64_t block, BlockState& state) {
  state_ = &state;
  const BlockLayout& layout = context_.layout;
  rows_ = {layout.FirstRow(block), layout.Lanes(block), layout.PaddedLanes(block)};
  m_.ResetPointers();
  m_.ForgetRanges();
  m_.SetBlockWidth(rows_.width);
  m_.SetLanes(RunningLanes());
  m_.nonfinite = {};
  const Plan& plan = m_.plan();
  for (size_t k = 0; k < plan.states.size(); ++k) {
    const Slot& slot = m_.slot(plan.states[k].slot);
    CopyInPieces(m_.meter, m_.at[plan.states[k].slot],
                 state.numbers.data() + layout.state(k) * rows_.width,
                 slot.bytes_per_lane() * rows_.width);
  }
  context_.reader.LoadConstant(m_, rows_);
  m_.RunInPieces(plan.per_block);
}

void BlockRunner::Store(BlockState& state) {
  const Plan& plan = m_.plan();
  for (size_t k = 0; k < plan.states.size(); ++k) {
    const Slot& slot = m_.slot(plan.states[k].slot);
    CopyInPieces(m_.meter, state.numbers.data() + context_.layout.state(k) * rows_.width,
                 m_.at[plan.states[k].slot], slot.bytes_per_lane() * rows_.width);
  }
}

void BlockRunner::StoreExports(const LaneBits& lanes) {
  const Plan& plan = m_.plan();
  for (size_t k = 0; k < plan.exports.size(); ++k) {
    const Slot& slot = m_.slot(plan.exports[k]);
    std::byte* const to = state_->numbers.data() + context_.layout.exported(k) * rows_.width;
    const std::byte* const from = m_.at[plan.exports[k]];
    const int64_t bytes = slot.lane_bytes();
    if (!slot.uniform && !state_->stopped.Any()) {
      CopyInPieces(m_.meter, to, from, slot.bytes_per_lane() * rows_.width);
      continue;
    }
    const int64_t width = slot.uniform ? kLaneGroup : rows_.width;
    for (int64_t row = 0; row < slot.count; ++row) {
      m_.CountRow(row);
      ForEachLane(lanes, [&](int64_t j) {
        std::memcpy(to + (row * rows_.width + j) * bytes,
                    from + (row * width + (slot.uniform ? 0 : j)) * bytes,
                    static_cast<size_t>(bytes));
      });
    }
  }
}

void BlockRunner::Report(Phase phase, int64_t step) {
  if (!m_.nonfinite.Any()) return;
  const LaneBits fresh = (m_.nonfinite & LaneBits::First(rows_.lanes)) - state_->not_ok;
  if (fresh.Any()) state_->health.resize(static_cast<size_t>(rows_.lanes));
  ForEachLane(fresh, [&](int64_t lane) {
    InstanceHealth& health = state_->health[static_cast<size_t>(lane)];
    health.ok = false;
    health.phase = phase;
    health.step = step;
  });
  state_->not_ok = state_->not_ok | fresh;
  m_.nonfinite = {};
}

// Numbers from outside that are not finite; those without a step belong to step 0.
void BlockRunner::CheckInputs(int64_t t) {
  if (!context_.looks) return;
  for (size_t i = 0; i < m_.plan().inputs.size(); ++i) {
    const InputPlan& input = m_.plan().inputs[i];
    if (!input.used || !IsReal(m_.slot(input.slot))) continue;
    if (t == 0 || input.per_step) m_.Look(input.slot, -1);
  }
  Report(Phase::kInput, t);
}

void BlockRunner::Start(int64_t block, BlockState& state) {
  const Plan& plan = m_.plan();
  const BlockLayout& layout = context_.layout;
  const size_t width = static_cast<size_t>(layout.PaddedLanes(block));
  const size_t lanes = static_cast<size_t>(layout.Lanes(block));
  state = {};
  ResizeInPieces(m_.meter, state.numbers, static_cast<size_t>(layout.bytes_per_lane()) * width);
  if (context_.counts) state.path.signature.assign(width, 0);
  for (const Site& site : context_.program.sites) {
    if (!context_.counts || site.kind != SiteKind::kEvent) continue;
    state.path.last_events.emplace_back(static_cast<size_t>(site.elements));
    state.path.seen_events.emplace_back();
    state.path.first_event.emplace_back(lanes, -1);
  }
  Load(block, state);
  context_.reader.LoadStates(m_, rows_);
  context_.reader.LoadStep(m_, rows_, 0);
  m_.step = 0;
  CheckInputs(0);
  m_.sites = nullptr;
  m_.ranges = nullptr;
  m_.Run(plan.initial);
  for (size_t k = 0; k < plan.initial_yields.size(); ++k) {
    const Slot& slot = m_.slot(plan.initial_yields[k]);
    if (context_.looks && IsReal(slot)) m_.Look(plan.initial_yields[k], -1);
    CopyInPieces(m_.meter, m_.at[plan.states[k].slot], m_.at[plan.initial_yields[k]],
                 slot.bytes_per_lane() * rows_.width);
  }
  Report(Phase::kForward, 0);
  Store(state);
}

void BlockRunner::Forward(int64_t block, BlockState& state, const ChunkOutput& output) {
  Load(block, state);
  m_.sites = nullptr;
  m_.ranges = nullptr;
  if (context_.counts) {
    const bool per_instance = context_.options.recording == Recording::kInstances;
    sites_.BeginBlock(&state.path, context_.batch.instance_ids.data() + rows_.first, rows_.first,
                      rows_.lanes,
                      {output.diagnostics, per_instance ? &output.chunk->instance_sites : nullptr,
                       output.first, context_.batch.instances});
    m_.sites = &sites_;
    m_.ranges = &output.diagnostics->ranges;
  }
  sample_ = 0;
  for (int64_t t = output.first; t < output.first + output.count; ++t) Step(t, output);
  if (context_.counts) sites_.EndBlock(m_.kernels());
  Store(state);
}

void BlockRunner::AddCost(int32_t slot) {
  std::byte* const cost = state_->numbers.data() + context_.layout.cost() * rows_.width;
  if (context_.stops) {
    std::memcpy(cost_before_.data(), cost, static_cast<size_t>(rows_.width * 8));
  }
  m_.kernels().accumulate[static_cast<size_t>(cost_format_)](cost, m_.at[slot], every_lane_.data(),
                                                             rows_.width);
  const int wide = cost_carrier_ == Carrier::kF64 ? 1 : 0;
  if (!context_.looks || !m_.kernels().any_nonfinite[wide](cost, rows_.width)) return;
  ForEachLane(m_.lane_set.counted, [&](int64_t j) {
    if (!std::isfinite(LoadReal(cost, cost_carrier_, j))) m_.nonfinite.Add(j);
  });
}

// One pass serves both the non-finite check and the range counters.
void BlockRunner::LookAtStates() {
  unusual_states_.clear();
  for (const StatePlan& state : m_.plan().states) {
    if (!IsReal(m_.slot(state.yield)) || !IsUnusual(state)) continue;
    unusual_states_.push_back(&state);
    m_.Look(state.yield, -1);
  }
}

// Whether a number of the state is subnormal, infinite or NaN, padding included.
bool BlockRunner::IsUnusual(const StatePlan& state) const {
  const Slot& slot = m_.slot(state.yield);
  const double normal =
      precision::DoublePowerOfTwo(precision::Traits(m_.slot(state.slot).format).min_exponent);
  const int wide = slot.carrier == Carrier::kF64 ? 1 : 0;
  bool unusual = false;
  InPieces(m_.meter, slot.count, rows_.width, [&](int64_t begin, int64_t end) {
    const std::byte* const rows = m_.at[state.yield] + begin * rows_.width * slot.lane_bytes();
    unusual = unusual || m_.kernels().any_unusual[wide](rows, normal, (end - begin) * rows_.width);
  });
  return unusual;
}

// Instances that are not ok stand still from here on.
void BlockRunner::StopLanes() {
  const LaneBits fresh = state_->not_ok - state_->stopped;
  if (fresh.Any()) {
    sites_.SplitSignatureOf(state_->path);
    ForEachLane(fresh,
                [&](int64_t lane) { state_->health[static_cast<size_t>(lane)].stopped = true; });
    state_->stopped = state_->stopped | fresh;
    m_.SetLanes(RunningLanes());
  }
}

// What a stopped lane computed is replaced by what it had.
void BlockRunner::KeepStopped() {
  LaneBits kept = LaneBits::First(rows_.width) - m_.lane_set.running;
  const int64_t cost_bytes = LaneBytes(cost_carrier_);
  std::byte* const cost = state_->numbers.data() + context_.layout.cost() * rows_.width;
  if (m_.plan().stage_cost >= 0) {
    ForEachLane(kept, [&](int64_t j) {
      std::memcpy(cost + j * cost_bytes, cost_before_.data() + j * cost_bytes,
                  static_cast<size_t>(cost_bytes));
    });
  }
  for (const StatePlan& state : m_.plan().states) {
    const Slot& slot = m_.slot(state.yield);
    const int64_t bytes = slot.lane_bytes();
    for (int64_t row = 0; row < slot.count; ++row) {
      m_.CountRow(row);
      ForEachLane(kept, [&](int64_t j) {
        const int64_t at = (row * rows_.width + j) * bytes;
        std::memcpy(m_.at[state.yield] + at, m_.at[state.slot] + at, static_cast<size_t>(bytes));
      });
    }
  }
}

// Follows LookAtStates; a lane that stopped since is not counted.
void BlockRunner::CountStores(RangeCounts& ranges) {
  const size_t role = static_cast<size_t>(precision::Role::kState);
  for (const StatePlan* state : unusual_states_) {
    const Slot& slot = m_.slot(state->yield);
    const Format format = m_.slot(state->slot).format;
    const double normal = precision::DoublePowerOfTwo(precision::Traits(format).min_exponent);
    m_.ForEachExecuted(static_cast<int32_t>(slot.count), -1, [&](int64_t row, int64_t j) {
      const double x = LoadReal(m_.at[state->yield], slot.carrier, row * rows_.width + j);
      if (x != 0.0 && std::abs(x) < normal) ++ranges.underflows[role];
      if (std::isinf(x)) ++ranges.overflows[role];
    });
  }
}

void BlockRunner::Step(int64_t t, const ChunkOutput& output) {
  const Plan& plan = m_.plan();
  if (m_.lane_set.counted.Any()) {
    m_.step = t;
    m_.recorded_bytes = 0;
    context_.reader.LoadStep(m_, rows_, t);
    if (t > 0 && plan.checks_step_inputs) CheckInputs(t);
    sites_.BeginStep(t);
    m_.Run(plan.step);
    if (plan.stage_cost >= 0) AddCost(plan.stage_cost);
    if (context_.looks) {
      LookAtStates();
      Report(Phase::kForward, t);
    }
    if (context_.stops) {
      StopLanes();
      if (state_->stopped.Any()) KeepStopped();
    }
    const bool last = t + 1 == output.first + output.count;
    if (last || context_.stops || !context_.options.record_exports.empty()) {
      StoreExports(m_.lane_set.counted | (m_.lane_set.running - LaneBits::First(rows_.lanes)));
    }
    if (context_.counts) CountStores(output.diagnostics->ranges);
    if (output.record_bytes != nullptr) {
      output.record_bytes[t] = std::max(output.record_bytes[t], m_.recorded_bytes);
    }
    for (const StatePlan& state : plan.states) std::swap(m_.at[state.slot], m_.at[state.yield]);
  }
  if (context_.counts) {
    const std::vector<int64_t>& sampled = output.diagnostics->sampled_steps;
    if (sample_ < static_cast<int64_t>(sampled.size()) &&
        sampled[static_cast<size_t>(sample_)] == t) {
      NoteStates(sample_++, *output.diagnostics);
    }
  }
  Record(t, output);
}

void BlockRunner::NoteStates(int64_t sample, StepDiagnostics& diagnostics) {
  size_t real_state = 0;
  for (const StatePlan& state : m_.plan().states) {
    const Slot& slot = m_.slot(state.slot);
    if (!IsReal(slot)) continue;
    StateRange& range = diagnostics.states[real_state++][static_cast<size_t>(sample)];
    for (int64_t row = 0; row < slot.count; ++row) {
      m_.CountRow(row);
      NoteRow(m_.at[state.slot] + row * rows_.width * slot.lane_bytes(), slot, range);
    }
  }
}

// One row of a state; number by number where one of them is out of the ordinary.
void BlockRunner::NoteRow(const std::byte* numbers, const Slot& slot, StateRange& range) const {
  const KernelTable& kernels = m_.kernels();
  const int wide = slot.carrier == Carrier::kF64 ? 1 : 0;
  const double normal = std::ldexp(1.0, precision::Traits(slot.format).min_exponent);
  StateRange noted;
  if (!kernels.any_unusual[wide](numbers, normal, rows_.width)) {
    const LaneBits lanes = LaneBits::First(rows_.lanes);
    const KeyRange keys = kernels.key_range[wide](numbers, lanes.word, rows_.width);
    noted.min = NumberOfKey(keys.lowest, wide != 0);
    noted.max = NumberOfKey(keys.highest, wide != 0);
    noted.smallest = kernels.smallest_magnitude[wide](numbers, rows_.width);
    LaneBits zeros;
    const double zero = 0.0;  // as either carrier
    kernels.compare_bits[static_cast<int>(Comparison::kEq)][wide](numbers, &zero, zeros.word,
                                                                  rows_.width);
    noted.zeros = static_cast<uint64_t>((zeros & lanes).Count());
    range.Merge(noted);
    return;
  }
  for (int64_t j = 0; j < rows_.lanes; ++j) noted.Note(LoadReal(numbers, slot.carrier, j), normal);
  range.Merge(noted);
}

void WriteTensorRow(Tensor& tensor, int64_t at, const Slot& slot, const std::byte* numbers,
                    int64_t width, int64_t lane, WorkMeter& meter) {
  const auto set = [&](int64_t to, int64_t i) {
    switch (slot.carrier) {
      case Carrier::kF32:
      case Carrier::kF64:
        return tensor.Set(to, LoadReal(numbers, slot.carrier, i));
      case Carrier::kI32:
        return tensor.SetInt(to, reinterpret_cast<const int32_t*>(numbers)[i]);
      case Carrier::kI64:
        return tensor.SetInt(to, reinterpret_cast<const int64_t*>(numbers)[i]);
      case Carrier::kBool:
        return tensor.SetInt(to, reinterpret_cast<const int32_t*>(numbers)[i] != 0 ? 1 : 0);
    }
  };
  InPieces(meter, slot.count, kConversionWork, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) set(at + e, e * width + lane);
  });
}

void BlockRunner::Record(int64_t t, const ChunkOutput& output) {
  const auto write = [&](const Slot& slot, const std::byte* numbers, Tensor& tensor) {
    for (int64_t lane = 0; lane < rows_.lanes; ++lane) {
      const int64_t cell = (rows_.first + lane) * output.count + (t - output.first);
      WriteTensorRow(tensor, cell * slot.count, slot, numbers, rows_.width, lane, m_.meter);
    }
  };
  const Plan& plan = m_.plan();
  const std::vector<int32_t>& states = context_.options.record_states;
  for (size_t k = 0; k < states.size(); ++k) {
    const int32_t slot = plan.inputs[static_cast<size_t>(states[k])].slot;
    write(m_.slot(slot), m_.at[slot], output.chunk->states[k]);
  }
  const std::vector<int32_t>& exports = context_.options.record_exports;
  for (size_t k = 0; k < exports.size(); ++k) {
    const size_t index = static_cast<size_t>(exports[k]);
    write(m_.slot(plan.exports[index]),
          state_->numbers.data() + context_.layout.exported(index) * rows_.width,
          output.chunk->exports[k]);
  }
}

void BlockRunner::Finish(int64_t block, BlockState& state) {
  const Plan& plan = m_.plan();
  Load(block, state);
  if (context_.stops) StopLanes();
  if (plan.terminal_yield < 0 || !m_.lane_set.counted.Any()) return;
  m_.sites = nullptr;
  m_.ranges = nullptr;
  m_.step = context_.batch.steps;
  context_.reader.LoadStep(m_, rows_, context_.batch.steps);
  const size_t states = plan.states.size();
  for (size_t k = 0; k < plan.terminal_args.size(); ++k) {
    const int64_t at = k < states ? context_.layout.state(k) : context_.layout.exported(k - states);
    CopyInPieces(m_.meter, m_.at[plan.terminal_args[k]], state.numbers.data() + at * rows_.width,
                 m_.slot(plan.terminal_args[k]).bytes_per_lane() * rows_.width);
  }
  m_.Run(plan.terminal);
  AddCost(plan.terminal_yield);
  Report(Phase::kForward, context_.batch.steps);
  if (context_.stops) {
    StopLanes();
    const int64_t bytes = LaneBytes(cost_carrier_);
    std::byte* const cost = state.numbers.data() + context_.layout.cost() * rows_.width;
    ForEachLane(state.stopped, [&](int64_t j) {
      std::memcpy(cost + j * bytes, cost_before_.data() + j * bytes, static_cast<size_t>(bytes));
    });
  }
}

}  // namespace simgrad::sim::cpu
