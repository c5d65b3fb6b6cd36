#include "sim/backend/cpu/site_recorder.h"

#include <algorithm>
#include <cmath>

#include "precision/hash.h"
#include "precision/selection.h"
#include "precision/ulp.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

// Element (row, lane) of a value of any type as a double.
double NumberAt(const Machine& m, int32_t s, int64_t row, int64_t lane) {
  const Slot& slot = m.slot(s);
  const int64_t i = row * m.width[slot.uniform ? 1 : 0] + (slot.uniform ? 0 : lane);
  const std::byte* at = m.at[s];
  switch (slot.carrier) {
    case Carrier::kF32: return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
    case Carrier::kF64: return reinterpret_cast<const double*>(at)[i];
    case Carrier::kI32: return static_cast<double>(reinterpret_cast<const int32_t*>(at)[i]);
    case Carrier::kI64: return static_cast<double>(reinterpret_cast<const int64_t*>(at)[i]);
    case Carrier::kMask: break;
  }
  return reinterpret_cast<const int32_t*>(at)[i] != 0 ? 1.0 : 0.0;
}

const std::byte* RowAt(const Machine& m, int32_t s, int64_t row) {
  const Slot& slot = m.slot(s);
  return m.at[s] + row * m.width[slot.uniform ? 1 : 0] * slot.lane_bytes();
}

// The running positions of a layout that stand for an instance.
LaneBits CountedOf(const Machine& m) { return m.lane_set.counted & m.lane_set.running; }

}  // namespace

SiteRecorder::SiteRecorder(const NumericalProgram&, double near_band_ulps)
    : near_band_ulps_(near_band_ulps), keys_(2 * kMaxBlockWidth) {}

void SiteRecorder::BeginBlock(PathBlock* path, const uint64_t* ids, int64_t first_row,
                              int64_t lanes, ChunkTarget target) {
  path_ = path;
  ids_ = ids;
  first_row_ = first_row;
  lanes_ = lanes;
  target_ = target;
}

void SiteRecorder::SplitSignatureOf(PathBlock& path) {
  for (uint64_t& signature : path.signature) signature += path.common;
  path.common = 0;
}

uint64_t SiteRecorder::IdAt(const Machine& machine, int64_t position) const {
  return ids_[machine.lane_set.BlockLane(position)];
}

bool SiteRecorder::IsNan(const precision::Margin& margin) {
  return std::isnan(margin.absolute) || std::isnan(margin.ulps);
}

SiteRecorder::Pair SiteRecorder::PairAt(const Machine& m, const TestedPair& tested, int64_t row,
                                        int64_t lane) const {
  Pair pair{NumberAt(m, tested.a, row, lane), NumberAt(m, tested.b, row, lane), 0.0};
  for (const TestedPair::Extra& extra : tested.extras) {
    double magnitude = precision::Abs(NumberAt(m, extra.slot, row, lane));
    if (extra.factor >= 0) magnitude *= precision::Abs(NumberAt(m, extra.factor, row, lane));
    pair.extra = precision::Max(pair.extra, magnitude);
  }
  return pair;
}

precision::Margin SiteRecorder::MarginAt(const Machine& m, const TestedPair& tested, int64_t row,
                                         int64_t lane) const {
  const Pair pair = PairAt(m, tested, row, lane);
  if (!tested.real) return {pair.a - pair.b, pair.a - pair.b};
  return precision::MarginOf(tested.format, pair.a, pair.b, pair.extra);
}

void SiteRecorder::AddSignature(const Machine& m, const LaneBits& lanes, uint64_t hash) {
  if (m.lane_set.block_lane == nullptr && lanes.Count() == lanes_) {
    path_->common += hash;
    return;
  }
  ForEachLane(lanes, [&](int64_t j) {
    path_->signature[static_cast<size_t>(m.lane_set.BlockLane(j))] += hash;
  });
}

// ---- Loops.

void SiteRecorder::Test(Machine& m, const WhilePlan& plan, const LoopTestEvent& event) {
  const LaneBits counted = CountedOf(m);
  if (!counted.Any()) return;
  const LaneBits held = event.held & counted;
  const LaneBits refused = event.refused & counted;
  const size_t site = static_cast<size_t>(plan.site_index);
  const size_t column = static_cast<size_t>(step_ - target_.first_step);
  TerminationStep& step = target_.diagnostics->terminations[site][column];
  if (target_.instance_sites != nullptr) NoteInstances(m, plan, counted);
  const LaneBits tested = counted - refused;
  const LaneBits capped = event.last ? tested - held : LaneBits{};
  if (tested.Any()) CountTests(step, m, plan, event, tested, held | capped);
  if (refused.Any()) EndRuns(m, plan, step, event, refused, StopReason::kNotEntered);
  if (held.Any()) EndRuns(m, plan, step, event, held, StopReason::kConverged);
  if (!capped.Any()) return;
  LaneBits finite;
  ForEachLane(capped, [&](int64_t j) {
    if (std::isfinite(NumberAt(m, plan.tested.a, 0, j))) finite.Add(j);
  });
  LoopTestEvent at_cap = event;
  at_cap.iteration = plan.max_iter;
  const LaneBits nonfinite = capped - finite;
  if (finite.Any()) EndRuns(m, plan, step, at_cap, finite, StopReason::kMaxIter);
  if (nonfinite.Any()) EndRuns(m, plan, step, at_cap, nonfinite, StopReason::kNonFinite);
}

void SiteRecorder::CountOneTest(TerminationStep& step, const precision::Margin& margin, bool held,
                                bool ended, uint64_t times, uint64_t instance) {
  if (IsNan(margin)) {
    step.nan_margins += times;
    return;
  }
  const double magnitude = std::abs(margin.ulps);
  step.margin.Offer(margin.absolute, margin.ulps, instance);
  if (magnitude <= near_band_ulps_) (held ? step.near_stopped : step.near_continued) += times;
  if (ended) {
    step.histogram[static_cast<size_t>(MarginBucket(magnitude))] += static_cast<uint32_t>(times);
  }
}

// Lanes whose tested pair is the same, to the bit.
void SiteRecorder::CountEqualTests(TerminationStep& step, Machine& m, const WhilePlan& plan,
                                   const LoopTestEvent& event, const LaneBits& lanes,
                                   const LaneBits& ended) {
  uint64_t instance = ~uint64_t{0};
  ForEachLane(lanes, [&](int64_t j) { instance = std::min(instance, IdAt(m, j)); });
  const int64_t first = lanes.Lowest();
  const bool held = event.held.Has(first);
  CountOneTest(step, MarginAt(m, plan.tested, 0, first), held, ended.Has(first),
               static_cast<uint64_t>(lanes.Count()), instance);
}

void SiteRecorder::CountTests(TerminationStep& step, Machine& m, const WhilePlan& plan,
                              const LoopTestEvent& event, const LaneBits& counted,
                              const LaneBits& ended) {
  step.checks += static_cast<uint64_t>(counted.Count());
  LaneBits rest = counted;
  const Slot& a = m.slot(plan.tested.a);
  const bool simple = plan.tested.real && !a.uniform && m.slot(plan.tested.b).uniform &&
                      plan.tested.extras.empty();
  // Twice: most lanes have one value (a sum that is exactly zero), or a second one.
  for (int round = 0; simple && round < 2 && rest.Any(); ++round) {
    const int64_t first = rest.Lowest();
    LaneBits same;
    m.kernels().equal_bits[SizeIndex(a.carrier)](
        m.at[plan.tested.a], m.at[plan.tested.a] + first * a.lane_bytes(), same.word,
        m.lane_set.width);
    same = same & rest;
    if (round > 0 && same.Count() == 1) break;
    CountEqualTests(step, m, plan, event, same, ended);
    rest = rest - same;
  }
  ForEachLane(rest, [&](int64_t j) {
    CountOneTest(step, MarginAt(m, plan.tested, 0, j), event.held.Has(j), ended.Has(j), 1,
                 IdAt(m, j));
  });
}

void SiteRecorder::EndRuns(Machine& m, const WhilePlan& plan, TerminationStep& step,
                           const LoopTestEvent& event, const LaneBits& lanes, StopReason reason) {
  const uint64_t runs = static_cast<uint64_t>(lanes.Count());
  const uint64_t iterations = static_cast<uint64_t>(event.iteration);
  step.runs += runs;
  step.iterations_sum += runs * iterations;
  step.iterations_min = std::min(step.iterations_min, static_cast<uint32_t>(iterations));
  step.iterations_max = std::max(step.iterations_max, static_cast<uint32_t>(iterations));
  step.reasons[static_cast<size_t>(reason)] += runs;
  TerminationStep tested;
  double last = std::nan("");
  ForEachLane(lanes, [&](int64_t j) {
    const double x = NumberAt(m, plan.tested.a, 0, j);
    if (x == last && std::signbit(x) == std::signbit(last)) return;
    last = x;
    if (std::isnan(x)) return;
    TerminationStep one;
    one.tested_min = one.tested_max = x;
    tested.Merge(one);
  });
  step.Merge(tested);
  const uint64_t hash = precision::DecisionHash(
      plan.site_hash, static_cast<uint64_t>(step_), static_cast<uint64_t>(event.outer_iteration),
      static_cast<uint64_t>(m.element),
      precision::LoopOutcome(iterations, static_cast<uint64_t>(reason)));
  AddSignature(m, lanes, hash);
  if (target_.instance_sites == nullptr) return;
  InstanceSite& site = (*target_.instance_sites)[static_cast<size_t>(plan.site_index)];
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t row = first_row_ + m.lane_set.BlockLane(j);
    const size_t cell =
        static_cast<size_t>((step_ - target_.first_step) * target_.instances + row);
    site.iterations[cell] += static_cast<uint32_t>(iterations);
    site.reasons[cell] = static_cast<uint8_t>(reason);
  });
}

void SiteRecorder::NoteInstances(Machine& m, const WhilePlan& plan, const LaneBits& lanes) {
  InstanceSite& site = (*target_.instance_sites)[static_cast<size_t>(plan.site_index)];
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t row = first_row_ + m.lane_set.BlockLane(j);
    const size_t cell =
        static_cast<size_t>((step_ - target_.first_step) * target_.instances + row);
    ++site.value_counts[cell];
    site.values[static_cast<size_t>(row)].push_back(
        precision::Canonical(NumberAt(m, plan.tested.a, 0, j)));
  });
}

// ---- Events.

void SiteRecorder::OfferEach(Machine& m, const TestedPair& tested, int64_t row,
                             const LaneBits& lanes, SmallestMargin& smallest, uint64_t& nans) {
  ForEachLane(lanes, [&](int64_t j) {
    const precision::Margin margin = MarginAt(m, tested, row, j);
    if (IsNan(margin)) {
      ++nans;
    } else {
      smallest.Offer(margin.absolute, margin.ulps, IdAt(m, j));
    }
  });
}

void SiteRecorder::OfferMargins(Machine& m, const TestedPair& tested, int64_t row,
                                const LaneBits& lanes, bool all, SmallestMargin& smallest,
                                uint64_t& nans) {
  const Slot& a = m.slot(tested.a);
  if (!tested.real || !tested.plain_extras || tested.extras.size() > 4 || lanes.Count() < 8) {
    return OfferEach(m, tested, row, lanes, smallest, nans);
  }
  MarginScan scan;
  scan.a = RowAt(m, tested.a, row);
  scan.b = RowAt(m, tested.b, row);
  scan.uniform[0] = a.uniform;
  scan.uniform[1] = m.slot(tested.b).uniform;
  for (const TestedPair::Extra& extra : tested.extras) {
    scan.uniform[2 + scan.extras] = m.slot(extra.slot).uniform;
    scan.extra[scan.extras++] = RowAt(m, extra.slot, row);
  }
  scan.width = m.lane_set.width;
  LoopScratch& scratch = m.ScratchAt(m.depth);
  if (!all) {
    for (int64_t j = 0; j < scan.width; ++j) scratch.mask[j] = lanes.Has(j) ? -1 : 0;
    scan.executed = scratch.mask;
  }
  scan.absolute_key = keys_.data();
  scan.ulps_key = keys_.data() + kMaxBlockWidth;
  m.kernels().margins[static_cast<size_t>(tested.format)](scan);
  const bool wide = a.carrier == Carrier::kF64;
  const auto key = [&](const void* keys, int64_t j) {
    return wide ? static_cast<const int64_t*>(keys)[j]
                : static_cast<int64_t>(static_cast<const int32_t*>(keys)[j]);
  };
  const int64_t infinity = wide ? int64_t{0x7FF} << 52 : int64_t{0xFF} << 23;
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t absolute = key(scan.absolute_key, j);
    if (absolute > infinity) {
      ++nans;
      return;
    }
    if (absolute > scan.smallest_absolute + 1 &&
        key(scan.ulps_key, j) > scan.smallest_ulps + 1) {
      return;
    }
    const precision::Margin margin = MarginAt(m, tested, row, j);
    smallest.Offer(margin.absolute, margin.ulps, IdAt(m, j));
  });
}

void SiteRecorder::Event(Machine& m, const EventPlan& plan) {
  const LaneBits counted = CountedOf(m);
  if (!counted.Any()) return;
  const size_t site = static_cast<size_t>(plan.site_index);
  EventStep& step =
      target_.diagnostics->events[site][static_cast<size_t>(step_ - target_.first_step)];
  const int64_t block_width = m.block_width();
  std::vector<int64_t>& first_event = path_->first_event[site];
  for (int64_t row = 0; row < plan.elements; ++row) {
    LaneBits value;
    m.kernels().mask_bits(
        reinterpret_cast<const int32_t*>(m.at[plan.result]) + row * m.lane_set.width, value.word,
        m.lane_set.width);
    value = value & counted;
    LaneBits guarded = counted;
    if (plan.guard >= 0) {
      LaneBits guard;
      m.kernels().mask_bits(
          reinterpret_cast<const int32_t*>(m.at[plan.guard]) + row * m.lane_set.width, guard.word,
          m.lane_set.width);
      guarded = guarded & guard;
    }
    const int64_t element = m.element * plan.elements + row;
    int32_t* const last = path_->last_events[site].data() + element * block_width;
    LaneBits before;
    if (m.lane_set.block_lane == nullptr) {
      m.kernels().mask_bits(last, before.word, m.lane_set.width);
    } else {
      ForEachLane(counted, [&](int64_t j) {
        if (last[m.lane_set.block_lane[j]] != 0) before.Add(j);
      });
    }
    before = before & counted;
    const LaneBits rising = value - before;
    const LaneBits falling = before - value;
    const auto note = [&](const LaneBits& lanes, uint64_t outcome) {
      if (!lanes.Any()) return;
      const uint64_t hash = precision::DecisionHash(
          plan.site_hash, static_cast<uint64_t>(step_), static_cast<uint64_t>(m.iteration),
          static_cast<uint64_t>(element), outcome);
      step.changes += static_cast<uint64_t>(lanes.Count());
      ForEachLane(lanes, [&](int64_t j) {
        const int64_t lane = m.lane_set.BlockLane(j);
        last[lane] = outcome != 0 ? -1 : 0;
        path_->signature[static_cast<size_t>(lane)] += hash;
        int64_t& first = first_event[static_cast<size_t>(lane)];
        if (outcome != 0 && first < 0) first = step_;
      });
    };
    note(rising, 1);
    note(falling, 0);
    step.count += static_cast<uint64_t>(value.Count());
    step.checks += static_cast<uint64_t>(guarded.Count());
    if (!guarded.Any()) continue;
    const bool all = plan.guard < 0 && m.lane_set.all_running && lanes_ == block_width;
    OfferMargins(m, plan.tested, row, guarded, all, step.margin, step.nan_margins);
  }
}

void RunEvent(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  if (machine.sites == nullptr) return;
  machine.sites->Event(machine, *static_cast<const EventPlan*>(instruction.plan));
}

}  // namespace simgrad::sim::cpu
