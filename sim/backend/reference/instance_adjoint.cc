// One instance in reverse: seeds, the replay of a range of steps, and their adjoint.
#include <algorithm>
#include <cmath>
#include <utility>

#include "precision/arithmetic.h"
#include "sim/backend/reference/instance_run.h"

namespace simgrad::sim::reference {

AdjointRunner InstanceRun::Reverse(RangeCounts* ranges, int64_t t) {
  if (!adjoint_health_) adjoint_health_ = state_.health;
  watch_.Begin(&*adjoint_health_, Phase::kAdjoint, t);
  return AdjointRunner(
      program_, layouts_,
      {.meter = &meter_, .watch = &watch_, .ranges = ranges, .arithmetic = arithmetic_}, gradients_,
      t);
}

// The cotangent that the caller sent for one value, scaled: entry `entry` of this instance's array.
Slot InstanceRun::SentSlot(const std::vector<double>& sent, int64_t entry, const Type& type,
                           const std::string& name, bool is_read) {
  if (sent.empty()) return {};
  const Format format = program_.policy[Role::kAdjoint].format;
  const size_t n = static_cast<size_t>(ElementCount(type.shape));
  Array array;
  for (size_t i = 0; i < n; ++i) {
    meter_.Add(kElementWork);
    const double scaled = sent[static_cast<size_t>(entry) * n + i] * seed_;
    array.real.push_back(precision::RoundTo(format, scaled));
    if (!is_read) continue;
    watch_.NoteCotangent(name, format, static_cast<int64_t>(i), scaled, array.real.back());
  }
  return {std::move(array), std::nullopt};
}

void InstanceRun::StartAdjoint(double seed_scale) {
  const Program& p = program();
  adjoint_health_ = state_.health;
  started_ = {};
  read_ = FindReadCotangents(program_);
  seed_ = precision::RoundTo(program_.policy[Role::kObjective].format, seed_scale);
  gradients_.assign(p.inputs.size(), {});
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    if (!program_.adjoint_spec->wanted[i]) continue;
    GradientSum& gradient = gradients_[i];
    const size_t n = static_cast<size_t>(ElementCount(p[p.inputs[i].value].type.shape));
    gradient.per_step = batch_.inputs[i].per_step;
    gradient.sum.assign(gradient.per_step ? n * static_cast<size_t>(batch_.steps) : n, 0.0);
  }
  StartWeights(batch_.steps, 1);
  cotangents_.assign(state_inputs_.size(), {});
  export_cotangents_.assign(p.exports.size(), {});
  if (state_.health.stopped) return;
  // Two cotangents enter at z[T]: that of the terminal cost, and the one that was sent.
  std::vector<Array> leading;
  const Region* terminal = TerminalOf(program_);
  if (terminal != nullptr) leading.push_back({{seed_}, {}});
  const auto taped =
      terminal != nullptr
          ? RunTaped(*terminal, batch_.steps, state_.states, TerminalArgs(), {.keep = true})
          : std::make_unique<Taped>(
                Taped{InputFrame(batch_.steps, state_.states), Frame(layouts_.empty(), nullptr)});
  taped->region.parent = &taped->inputs;
  std::vector<Slot> sent = SentStateSlots(batch_.cotangents.final_state, 1, 0, read_.final_state);
  for (Slot& slot : SentStateSlots(batch_.cotangents.trajectory_state, batch_.steps + 1,
                                   batch_.steps, read_.trajectory_state)) {
    sent.push_back(std::move(slot));
  }
  const std::vector<Slot> out =
      Reverse(&started_, batch_.steps)
          .RunRegion(program_.adjoint->terminal, nullptr, taped->region, leading, std::move(sent));
  for (size_t k = 0; k < out.size(); ++k) {
    (k < cotangents_.size() ? cotangents_[k] : export_cotangents_[k - cotangents_.size()]) = out[k];
  }
}

void InstanceRun::StartWeights(int64_t first, int64_t entries) {
  const Program& p = program();
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!p.inputs[i].weights || !program_.adjoint_spec->wanted[i]) continue;
    const size_t n = static_cast<size_t>(ElementCount(p[p.inputs[i].value].type.shape));
    gradients_[i].per_step = true;
    gradients_[i].first = first;
    gradients_[i].sum.assign(n * static_cast<size_t>(entries), 0.0);
  }
}

void InstanceRun::EndWeights() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (program().inputs[i].weights) std::vector<double>().swap(gradients_[i].sum);
  }
}

// The slots of what was sent for the states: entry `entry` of `entries` per instance.
std::vector<Slot> InstanceRun::SentStateSlots(const std::vector<std::vector<double>>& sent,
                                              int64_t entries, int64_t entry,
                                              const std::vector<bool>& read) {
  std::vector<Slot> slots(state_inputs_.size());
  for (size_t k = 0; k < slots.size() && k < sent.size(); ++k) {
    const Input& input = program().inputs[static_cast<size_t>(state_inputs_[k])];
    slots[k] = SentSlot(sent[k], static_cast<int64_t>(row_) * entries + entry,
                        program()[input.value].type, input.name, read[k]);
  }
  return slots;
}

// The slots that the adjoint of step t takes.
std::vector<Slot> InstanceRun::StepSlots(int64_t t) {
  const Program& p = program();
  const auto& sent = batch_.cotangents.trajectory_export;
  std::vector<Slot> slots = cotangents_;
  for (size_t k = 0; k < p.exports.size(); ++k) {
    slots.push_back(t == batch_.steps - 1 ? export_cotangents_[k] : Slot{});
  }
  for (size_t k = 0; k < p.exports.size(); ++k) {
    const int64_t entry = static_cast<int64_t>(row_) * batch_.steps + t;
    const bool has = k < sent.size();
    slots.push_back(has ? SentSlot(sent[k], entry, p[p.exports[k].value].type, p.exports[k].name,
                                   read_.trajectory_export[k])
                        : Slot{});
  }
  for (Slot& slot : SentStateSlots(batch_.cotangents.trajectory_state, batch_.steps + 1, t,
                                   read_.trajectory_state)) {
    slots.push_back(std::move(slot));
  }
  return slots;
}

void InstanceRun::NoteCotangents(BackwardStep& step, RangeCounts& ranges) const {
  BackwardStep own;
  const Format format = program_.policy[Role::kAdjoint].format;
  const double smallest_normal = std::ldexp(1.0, precision::Traits(format).min_exponent);
  for (const Slot& slot : cotangents_) {
    if (!slot.cotangent) continue;
    for (size_t i = 0; i < slot.cotangent->real.size(); ++i) {
      meter_.Add(kElementWork);
      if (slot.mask && slot.mask->integer[i] == 0) continue;
      const double magnitude = std::abs(slot.cotangent->real[i]);
      if (!std::isfinite(magnitude)) {
        ++own.nonfinite;
        continue;
      }
      if (magnitude != 0.0 && magnitude < smallest_normal) {
        ++ranges.underflows[static_cast<size_t>(Role::kAdjoint)];
      }
      own.largest = std::max(own.largest, magnitude);
      ++own.exponents[static_cast<size_t>(ExponentBucket(magnitude))];
    }
  }
  step.Merge(own);
}

void InstanceRun::AdjointSteps(int64_t first, int64_t count, AdjointChunk& chunk) {
  StartWeights(first, count);
  if (adjoint_health_->stopped) return;
  chunk.ranges.Merge(std::exchange(started_, {}));
  const Region& step = program().step;
  std::vector<std::unique_ptr<Taped>> tapes;
  std::vector<Array> states = state_.states;
  for (int64_t t = first; t < first + count; ++t) {
    tapes.push_back(RunTaped(step, t, states, {}, {.keep = true}));
    for (size_t k = 0; k < states.size(); ++k) {
      states[k] = tapes.back()->region.At(step.yields[k]);
    }
  }
  for (int64_t t = first + count - 1; t >= first; --t) {
    const Adjoint& adjoint = *program_.adjoint;
    const Region& region = t == batch_.steps - 1 ? adjoint.Last() : adjoint.inner;
    std::vector<Array> leading;
    if (program_.stage_cost != ValueId::kNone) leading.push_back({{seed_}, {}});
    const Frame& primal = tapes[static_cast<size_t>(t - first)]->region;
    cotangents_ =
        Reverse(&chunk.ranges, t).RunRegion(region, nullptr, primal, leading, StepSlots(t));
    NoteCotangents(chunk.steps[static_cast<size_t>(t - first)], chunk.ranges);
  }
}

void InstanceRun::FinishAdjoint() {
  StartWeights(0, 1);
  if (adjoint_health_->stopped) return;
  AdjointRunner runner = Reverse(nullptr, 0);
  if (program().HasInitial()) {
    const auto taped = RunTaped(program().initial, 0, SentStates(), {}, {.keep = true});
    cotangents_ = runner.RunRegion(program_.adjoint->initial, nullptr, taped->region, {},
                                   std::move(cotangents_));
  }
  const precision::RoleSetting& setting = program_.policy[Role::kGradient];
  for (size_t k = 0; k < state_inputs_.size(); ++k) {
    const size_t input = static_cast<size_t>(state_inputs_[k]);
    GradientSum& gradient = gradients_[input];
    const Slot& slot = cotangents_[k];
    if (gradient.sum.empty() || !slot.cotangent) continue;
    for (size_t i = 0; i < gradient.sum.size(); ++i) {
      meter_.Add(kElementWork);
      if (slot.mask && slot.mask->integer[i] == 0) continue;
      const double x = slot.cotangent->real[i];
      gradient.sum[i] = precision::RoundTo(setting.format, x, setting.overflow);
      if (ArithmeticCounts* counts =
              CountsOf(Role::kGradient, "cast", program().inputs[input].name)) {
        ++counts->results;
        ArithmeticCounter(*counts, {}).Rounded(setting.format, x, gradient.sum[i]);
        const bool fits = precision::IsFinite(precision::RoundTo(setting.format, x));
        counts->overflows += precision::IsFinite(x) && !fits ? 1 : 0;
      }
      gradient.connected = true;
      watch_.SeeSum("cast", program().inputs[input].name, Role::kGradient, setting.format,
                    static_cast<int64_t>(i), {x}, gradient.sum[i]);
    }
  }
}

}  // namespace simgrad::sim::reference
