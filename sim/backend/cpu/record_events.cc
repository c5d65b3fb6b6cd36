// Events: how often they hold and change, and the margins of a row.
#include "precision/hash.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {
namespace {

// Below this few lanes a pass over all of them does not pay.
constexpr int64_t kFew = 48;

}  // namespace

void SiteRecorder::CountChanges(const Machine& m, const EventPlan& plan, int64_t row,
                                const LaneBits& counted, const LaneBits& value, EventStep& step) {
  const size_t site = static_cast<size_t>(plan.site_index);
  const int64_t element = m.element * plan.elements + row;
  LaneBits& last = path_->last_events[site][static_cast<size_t>(element)];
  const LaneBits lanes = ToBlock(m, counted);
  const LaneBits now = ToBlock(m, value);
  const LaneBits before = last & lanes;
  last = (last - lanes) | now;
  const auto add = [&](const LaneBits& changed, uint64_t outcome) {
    if (!changed.Any()) return;
    const uint64_t hash = precision::DecisionHash(plan.site_hash, static_cast<uint64_t>(step_),
                                                  static_cast<uint64_t>(m.iteration),
                                                  static_cast<uint64_t>(element), outcome);
    step.changes += static_cast<uint64_t>(changed.Count());
    if (changed == LaneBits::First(lanes_)) {
      path_->common += hash;
    } else if (changed.Count() < kFew) {
      ForEachLane(changed,
                  [&](int64_t lane) { path_->signature[static_cast<size_t>(lane)] += hash; });
    } else {
      m.kernels().add_where(path_->signature.data(), hash, changed.word, m.block_width());
    }
  };
  add(now - before, 1);
  add(before - now, 0);
  LaneBits& seen = path_->seen_events[site];
  const LaneBits fresh = now - seen;
  if (!fresh.Any()) return;
  seen = seen | fresh;
  ForEachLane(fresh,
              [&](int64_t lane) { path_->first_event[site][static_cast<size_t>(lane)] = step_; });
}

void SiteRecorder::Event(Machine& m, const EventPlan& plan) {
  const LaneBits counted = CountedOf(m);
  if (!counted.Any()) return;
  const size_t site = static_cast<size_t>(plan.site_index);
  EventStep& step =
      target_.diagnostics->events[site][static_cast<size_t>(step_ - target_.first_step)];
  const int64_t width = m.lane_set.width;
  const auto bits_at = [&](int32_t mask, int64_t row) {
    LaneBits bits;
    m.kernels().mask_bits(reinterpret_cast<const int32_t*>(m.at[mask]) + row * width, bits.word,
                          width);
    return bits & counted;
  };
  for (int64_t row = 0; row < plan.elements; ++row) {
    m.CountRow(row);
    const LaneBits value = bits_at(plan.result, row);
    const LaneBits guarded = plan.guard >= 0 ? bits_at(plan.guard, row) : counted;
    CountChanges(m, plan, row, counted, value, step);
    step.count += static_cast<uint64_t>(value.Count());
    step.checks += static_cast<uint64_t>(guarded.Count());
    if (!extremes_ || !guarded.Any()) continue;
    OfferMargins(m, plan.tested, row, guarded, step.margin, step.nan_margins);
  }
}

void RunEvent(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  if (machine.sites == nullptr) return;
  machine.sites->Event(machine, *static_cast<const EventPlan*>(instruction.plan));
}

}  // namespace simgrad::sim::cpu
