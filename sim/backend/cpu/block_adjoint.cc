#include "sim/backend/cpu/block_adjoint.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "precision/arithmetic.h"
#include "precision/rounding.h"

namespace simgrad::sim::cpu {
namespace {

Carrier CarrierOfFormat(Format format) {
  return format == Format::kF64 ? Carrier::kF64 : Carrier::kF32;
}

}  // namespace

BlockAdjoint::BlockAdjoint(const RunContext& context, const Plan& plan)
    : context_(context),
      m_(plan, context.layout.width(), WorkMeter(context.options.stop)),
      adjoint_format_(context.program.policy[precision::Role::kAdjoint].format),
      adjoint_carrier_(CarrierOfFormat(adjoint_format_)),
      gradient_format_(context.program.policy[precision::Role::kGradient].format),
      gradient_carrier_(CarrierOfFormat(gradient_format_)) {
  for (size_t i = 0; i < context.batch.inputs.size(); ++i) {
    sums_per_step_ = sums_per_step_ || context.IsSummedPerStep(i);
  }
  context.reader.LoadUniform(m_);
  m_.RunInPieces(plan.per_run);
}

// False: every instance of the block has been stopped, nothing is reversed.
bool BlockAdjoint::Load(int64_t block, const BlockState& state, AdjointBlock& adjoint) {
  const BlockLayout& layout = context_.layout;
  adjoint_ = &adjoint;
  rows_ = {layout.FirstRow(block), layout.Lanes(block), layout.PaddedLanes(block)};
  m_.ResetPointers();
  m_.ForgetRanges();
  m_.SetBlockWidth(rows_.width);
  LaneSet set;
  set.width = rows_.width;
  set.running = LaneBits::First(rows_.width) - adjoint.stopped;
  set.all_running = !adjoint.stopped.Any();
  if (adjoint.stopped.Has(rows_.lanes - 1)) {
    set.running = set.running & LaneBits::First(rows_.lanes);
  }
  set.counted = LaneBits::First(rows_.lanes) & set.running;
  m_.SetLanes(set);
  m_.nonfinite = {};
  m_.position_in = {nullptr};
  m_.layout_width = {rows_.width};
  if (!set.counted.Any()) return false;
  CopyStates(state.numbers.data());
  context_.reader.LoadConstant(m_, rows_);
  m_.RunInPieces(m_.plan().per_block);
  for (size_t i = 0; i < adjoint.sums.size(); ++i) {
    m_.gradients[i] = {};
    if (adjoint.sums[i].empty()) continue;
    m_.gradients[i] = {adjoint.sums[i].data(), &adjoint.connected[i]};
  }
  return true;
}

// The states of a block, as BlockState::numbers begins with them, into their own places.
void BlockAdjoint::CopyStates(const std::byte* numbers) {
  const std::vector<StatePlan>& states = m_.plan().states;
  for (size_t k = 0; k < states.size(); ++k) {
    const int32_t s = states[k].slot;
    m_.at[s] = m_.HomeOf(s);
    m_.at[states[k].yield] = m_.HomeOf(states[k].yield);
    const int64_t bytes = m_.slot(s).bytes_per_lane() * rows_.width;
    if (bytes == 0) continue;  // a state without elements has no place
    CopyInPieces(m_.meter, m_.at[s], numbers + context_.layout.state(k) * rows_.width, bytes);
  }
}

void BlockAdjoint::Report(int64_t step) {
  if (!m_.nonfinite.Any()) return;
  const LaneBits fresh = (m_.nonfinite & LaneBits::First(rows_.lanes)) - adjoint_->not_ok;
  if (fresh.Any()) adjoint_->health.resize(static_cast<size_t>(rows_.lanes));
  ForEachLane(fresh, [&](int64_t lane) {
    InstanceHealth& health = adjoint_->health[static_cast<size_t>(lane)];
    health.ok = false;
    health.phase = Phase::kAdjoint;
    health.step = step;
  });
  adjoint_->not_ok = adjoint_->not_ok | fresh;
  m_.nonfinite = {};
}

void BlockAdjoint::RunAdjoint(const AdjointRegionPlan& region, int64_t step) {
  m_.tape = nullptr;
  m_.looks = context_.looks;
  underflow_.Begin(m_);
  m_.RunCode(region.region);
  underflow_.End(m_);
  if (!context_.looks) return;
  LookAtSums();
  Report(step);
}

void BlockAdjoint::Start(int64_t block, const BlockState& state, AdjointBlock& adjoint, double seed,
                         GradientStore& store) {
  const Plan& plan = m_.plan();
  const Program& p = context_.program.program;
  const int64_t steps = context_.batch.steps;
  const int64_t width = context_.layout.PaddedLanes(block);
  seed_ = seed;
  adjoint = {};
  adjoint.health = state.health;
  adjoint.not_ok = state.not_ok;
  adjoint.stopped = state.stopped;
  const auto held = [&](int64_t count) {
    const size_t n = static_cast<size_t>(count * width);
    const size_t bytes = n * static_cast<size_t>(LaneBytes(adjoint_carrier_));
    HeldSlot slot;
    ResizeInPieces(m_.meter, slot.cotangent, bytes);
    ResizeInPieces(m_.meter, slot.next, bytes);
    ResizeInPieces(m_.meter, slot.mask, n);
    return slot;
  };
  for (const StatePlan& s : plan.states) adjoint.states.push_back(held(m_.slot(s.slot).count));
  for (const Export& exported : p.exports) {
    adjoint.exports.push_back(held(ElementCount(p[exported.value].type.shape)));
  }
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool no_steps = context_.IsSummedPerStep(i) && steps == 0;
    const bool wanted = context_.program.adjoint_spec->wanted[i] && !no_steps;
    const bool real = p[p.inputs[i].value].type.element == ElementType::kReal;
    const int64_t n = wanted && real ? ElementCount(p[p.inputs[i].value].type.shape) * width : 0;
    ResizeInPieces(m_.meter, adjoint.sums.emplace_back(),
                   static_cast<size_t>(n * LaneBytes(gradient_carrier_)));
    adjoint.connected.emplace_back();
  }
  if (!Load(block, state, adjoint)) return;
  context_.reader.LoadStep(m_, rows_, steps);
  m_.ranges = nullptr;
  if (plan.terminal_yield >= 0) {
    for (size_t k = 0; k < plan.terminal_args.size(); ++k) {
      const size_t states = plan.states.size();
      const int64_t at =
          k < states ? context_.layout.state(k) : context_.layout.exported(k - states);
      CopyInPieces(m_.meter, m_.at[plan.terminal_args[k]], state.numbers.data() + at * rows_.width,
                   m_.slot(plan.terminal_args[k]).bytes_per_lane() * rows_.width);
    }
    tape_.Reset();
    m_.tape = &tape_;
    m_.looks = false;
    m_.frames[static_cast<size_t>(plan.terminal.id)] = {m_.Run(plan.terminal), 0};
  }
  const AdjointRegionPlan& region = plan.adjoint_terminal;
  SetSeed(region.seed);
  const size_t n = plan.states.size();
  for (size_t k = 0; k < region.args.size(); ++k) {
    if (k < n) {
      BindSent(region.args[k], context_.batch.cotangents.final_state, k, 1, 0);
    } else {
      BindSent(region.args[k], context_.batch.cotangents.trajectory_state, k - n, steps + 1, steps);
    }
  }
  // What the terminal cost reads of such inputs is that of the last step.
  LoadSums(steps - 1, store);
  RunAdjoint(region, steps);
  FlushSums(steps - 1, store);
  for (size_t k = 0; k < region.yields.size(); ++k) {
    Hold(region.yields[k], k < n ? adjoint.states[k] : adjoint.exports[k - n]);
  }
}

// Records the steps [first, end) onto the tape. With `cuts` a full tape is given up for the next
// segment, and the states there are kept; without, all of it is one segment.
void BlockAdjoint::RecordSteps(int64_t first, int64_t end, bool cuts) {
  const Plan& plan = m_.plan();
  const auto begin_segment = [&](int64_t t) {
    tape_.Reset();
    frames_.clear();
    frames_first_ = t;
  };
  m_.ranges = nullptr;
  m_.looks = false;
  m_.tape = &tape_;
  begin_segment(first);
  for (int64_t t = first; t < end; ++t) {
    if (cuts && (t == first || tape_.bytes() > kSegmentBytes)) {
      Cut& cut = cuts_.emplace_back();
      cut.step = t;
      ResizeInPieces(m_.meter, cut.states,
                     static_cast<size_t>(context_.layout.exported_begin() * rows_.width));
      for (size_t k = 0; k < plan.states.size(); ++k) {
        const int32_t s = plan.states[k].slot;
        const int64_t bytes = m_.slot(s).bytes_per_lane() * rows_.width;
        if (bytes == 0) continue;  // a state without elements has no place
        CopyInPieces(m_.meter, cut.states.data() + context_.layout.state(k) * rows_.width, m_.at[s],
                     bytes);
      }
      if (t != first) {
        CopyStates(cut.states.data());
        begin_segment(t);
      }
    }
    m_.step = t;
    context_.reader.LoadStep(m_, rows_, t);
    frames_.push_back(m_.Run(plan.step));
    for (const StatePlan& state : plan.states) {
      if (state.stored) {
        m_.at[state.slot] = m_.at[state.yield];
      } else {
        std::swap(m_.at[state.slot], m_.at[state.yield]);
      }
    }
  }
  m_.tape = nullptr;
}

void BlockAdjoint::Reverse(int64_t block, const BlockState& state, AdjointBlock& adjoint,
                           double seed, int64_t first, int64_t count, AdjointChunk& chunk,
                           GradientStore& store) {
  seed_ = seed;
  if (!Load(block, state, adjoint)) return;
  cuts_.clear();
  RecordSteps(first, first + count, true);
  int64_t end = first + count;
  for (size_t segment = cuts_.size(); segment-- > 0;) {
    const Cut& cut = cuts_[segment];
    if (frames_first_ != cut.step) {
      CopyStates(cut.states.data());
      RecordSteps(cut.step, end, false);
    }
    m_.ranges = &chunk.ranges;
    for (int64_t t = end; t-- > cut.step;) {
      ReverseStep(t, frames_[static_cast<size_t>(t - cut.step)], chunk, first, store);
    }
    end = cut.step;
  }
}

void BlockAdjoint::ReverseStep(int64_t t, const Frame* frame, AdjointChunk& chunk, int64_t first,
                               GradientStore& store) {
  const Plan& plan = m_.plan();
  const int64_t steps = context_.batch.steps;
  const bool last = t + 1 == steps;
  const AdjointRegionPlan& region =
      last && plan.adjoint_last ? *plan.adjoint_last : plan.adjoint_inner;
  m_.step = t;
  context_.reader.LoadStep(m_, rows_, t);
  m_.frames[static_cast<size_t>(plan.step.id)] = {frame, 0};
  SetSeed(region.seed);
  const size_t n = plan.states.size();
  const size_t e = adjoint_->exports.size();
  const Cotangents& sent = context_.batch.cotangents;
  for (size_t k = 0; k < region.args.size(); ++k) {
    const SlotPair& pair = region.args[k];
    if (k < n) {
      BindHeld(pair, adjoint_->states[k]);
    } else if (k < n + e) {
      BindHeld(pair, adjoint_->exports[k - n]);
    } else if (k < n + 2 * e) {
      BindSent(pair, sent.trajectory_export, k - n - e, steps, t);
    } else {
      BindSent(pair, sent.trajectory_state, k - n - 2 * e, steps + 1, t);
    }
  }
  for (size_t k = 0; k < n; ++k) BindYield(region.yields[k], adjoint_->states[k]);
  LoadSums(t, store);
  RunAdjoint(region, t);
  for (size_t k = 0; k < n; ++k) Hold(region.yields[k], adjoint_->states[k]);
  if (context_.counts) NoteCotangents(chunk.steps[static_cast<size_t>(t - first)]);
  FlushSums(t, store);
}

void BlockAdjoint::Finish(int64_t block, const BlockState& state, AdjointBlock& adjoint,
                          GradientStore& store) {
  const Plan& plan = m_.plan();
  const Program& p = context_.program.program;
  const bool runs = Load(block, state, adjoint);
  if (runs && p.HasInitial()) {
    context_.reader.LoadStates(m_, rows_);
    context_.reader.LoadStep(m_, rows_, 0);
    m_.step = 0;
    m_.ranges = nullptr;
    m_.looks = false;
    tape_.Reset();
    m_.tape = &tape_;
    const Frame* const frame = m_.Run(plan.initial);
    m_.frames[static_cast<size_t>(plan.initial.id)] = {frame, 0};
    // The initial region reads the states sent, which stand in the frame of the step's inputs.
    m_.frames[static_cast<size_t>(plan.step.id)] = {StateFrame(), 0};
    for (size_t k = 0; k < plan.adjoint_initial.args.size(); ++k) {
      BindHeld(plan.adjoint_initial.args[k], adjoint.states[k]);
    }
    LoadSums(context_.batch.steps > 0 ? 0 : -1, store);
    RunAdjoint(plan.adjoint_initial, 0);
    FlushSums(context_.batch.steps > 0 ? 0 : -1, store);
    for (size_t k = 0; k < plan.adjoint_initial.yields.size(); ++k) {
      Hold(plan.adjoint_initial.yields[k], adjoint.states[k]);
    }
  }
  size_t k = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool is_state = p.inputs[i].kind == InputKind::kState;
    const size_t state_index = is_state ? k++ : 0;
    if (adjoint.sums[i].empty()) continue;
    for (int64_t lane = 0; lane < rows_.lanes; ++lane) {
      bool connected = adjoint.connected[i].Has(lane);
      if (runs && m_.lane_set.counted.Has(lane)) {
        if (is_state) {
          connected = HandOutState(i, adjoint.states[state_index], lane, store) || connected;
        } else if (!context_.IsSummedPerStep(i)) {
          HandOutSum(i, lane, store);
        }
      }
      store.connected[i][static_cast<size_t>(rows_.first + lane)] = connected ? 1 : 0;
    }
  }
  Report(0);
}

// The gradient of a state as sent, of one lane; whether any of it is present.
bool BlockAdjoint::HandOutState(size_t input, const HeldSlot& held, int64_t lane,
                                GradientStore& store) {
  const precision::RoleSetting& setting = context_.program.policy[precision::Role::kGradient];
  const int64_t count = static_cast<int64_t>(held.mask.size()) / rows_.width;
  double* const to = store.values[input].data() + (rows_.first + lane) * count;
  bool connected = false;
  InPieces(m_.meter, count, kConversionWork, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t from = e * rows_.width + lane;
      if (held.mask[static_cast<size_t>(from)] == 0) continue;
      to[e] = precision::RoundTo(setting.format,
                                 LoadReal(held.cotangent.data(), adjoint_carrier_, from),
                                 setting.overflow);
      connected = true;
      if (!std::isfinite(to[e]) && context_.looks) m_.nonfinite.Add(lane);
    }
  });
  return connected;
}

void BlockAdjoint::HandOutSum(size_t input, int64_t lane, GradientStore& store) {
  const RowBytes& sum = adjoint_->sums[input];
  const int64_t numbers = static_cast<int64_t>(sum.size()) / LaneBytes(gradient_carrier_);
  const int64_t count = numbers / rows_.width;
  double* const to = store.values[input].data() + (rows_.first + lane) * count;
  InPieces(m_.meter, count, kConversionWork, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const double x = LoadReal(sum.data(), gradient_carrier_, e * rows_.width + lane);
      to[e] = precision::Canonical(x);
    }
  });
}

// A frame of the step that holds nothing but its states, where they are now.
const Frame* BlockAdjoint::StateFrame() {
  const RegionPlan& step = m_.plan().step;
  Frame* const frame = tape_.TakeFrame(static_cast<int64_t>(step.taped.size()), 0);
  for (size_t k = 0; k < step.taped.size(); ++k) frame->values[k] = m_.at[step.taped[k]];
  return frame;
}

}  // namespace simgrad::sim::cpu
