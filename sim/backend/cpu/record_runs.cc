// The runs of a loop: its tests and how they end.
#include <algorithm>
#include <cmath>

#include "precision/hash.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {

TerminationStep& SiteRecorder::StepOf(const WhilePlan& plan) const {
  return target_.diagnostics->terminations[static_cast<size_t>(plan.site_index)]
                                          [static_cast<size_t>(step_ - target_.first_step)];
}

void SiteRecorder::BeginRun(const Machine& m) {
  Run& run = RunAt(m.depth);
  run.outcomes.Clear();
  run.lanes = ToBlock(m, CountedOf(m));
  run.left = run.lanes.Count();
  run.deferred = false;
  run.below = true;
}

void SiteRecorder::Watch(const Machine& m, const WhilePlan& plan, int64_t iteration,
                         TestWatch& watch) {
  Run& run = RunAt(m.depth);
  const double b = static_cast<double>(*reinterpret_cast<const float*>(m.at[plan.tested.b]));
  if (iteration == 0) run.deferred = b >= plan.least_watched && !std::isinf(b);
  if (!run.deferred) return;
  if (m.lane_set.block_lane == nullptr) watch.held = run.last;
  const SmallestMargin& best = StepOf(plan).margin;
  if (!best.any) return;
  MarginWindow& window = windows_[static_cast<size_t>(plan.site_index)]
                                 [static_cast<size_t>(step_ - target_.first_step)];
  if (!window.IsOf(best, b)) window = MarginWindow(best, plan.tested.format, b, near_band_ulps_);
  window.Set(smallest_id_, watch);
}

void SiteRecorder::Test(Machine& m, const WhilePlan& plan, const LoopTestEvent& event) {
  Run& run = RunAt(m.depth);
  if (run.left == 0) return;
  const LaneBits counted = CountedOf(m);
  const LaneBits held = event.held & counted;
  TerminationStep& step = StepOf(plan);
  if (target_.instance_sites != nullptr) NoteInstances(m, plan, counted);
  if (run.deferred && event.quiet && !event.last) {
    step.checks += static_cast<uint64_t>(run.left);
    if (held.Any()) EndRuns(m, plan, event, held, StopReason::kConverged);
    return;
  }
  const LaneBits refused = event.refused & counted;
  const LaneBits tested = counted - refused;
  const LaneBits capped = event.last ? tested - held : LaneBits{};
  if (plan.has_entry && event.iteration == 0) {
    // A refused lane ends here. NaN is refused too, so these are not only the lanes below.
    CountTests({m, plan.entry_tested, step, refused, refused, false}, counted);
  }
  if (tested.Any()) {
    const bool less = plan.stop.comparison == Comparison::kLt;
    const LaneBits ended = run.deferred ? LaneBits{} : held | capped;
    CountTests({m, plan.tested, step, held, ended, less}, tested);
  }
  if (refused.Any()) EndRuns(m, plan, event, refused, StopReason::kNotEntered);
  if (held.Any()) EndRuns(m, plan, event, held, StopReason::kConverged);
  if (capped.Any()) EndAtCap(m, plan, event, capped);
}

void SiteRecorder::EndAtCap(Machine& m, const WhilePlan& plan, const LoopTestEvent& event,
                            const LaneBits& capped) {
  LaneBits finite;
  ForEachLane(capped, [&](int64_t j) {
    if (std::isfinite(NumberAt(m, plan.tested.a, 0, j))) finite.Add(j);
  });
  LoopTestEvent at_cap = event;
  at_cap.iteration = plan.max_iter;
  const LaneBits nonfinite = capped - finite;
  if (finite.Any()) EndRuns(m, plan, at_cap, finite, StopReason::kMaxIter);
  if (nonfinite.Any()) EndRuns(m, plan, at_cap, nonfinite, StopReason::kNonFinite);
}

void SiteRecorder::EndRuns(Machine& m, const WhilePlan& plan, const LoopTestEvent& event,
                           const LaneBits& lanes, StopReason reason) {
  Run& run = RunAt(m.depth);
  TerminationStep& step = StepOf(plan);
  const int64_t ended = lanes.Count();
  run.left -= ended;
  const uint64_t runs = static_cast<uint64_t>(ended);
  const uint64_t iterations = static_cast<uint64_t>(event.iteration);
  step.runs += runs;
  step.iterations_sum += runs * iterations;
  step.iterations_min = std::min(step.iterations_min, static_cast<uint32_t>(iterations));
  step.iterations_max = std::max(step.iterations_max, static_cast<uint32_t>(iterations));
  step.iterations[IterationBucket(iterations)] += static_cast<uint32_t>(runs);
  step.reasons[static_cast<size_t>(reason)] += runs;
  if (run.deferred) {
    // Those that held are there already, but for a packed layout.
    run.below = run.below && reason == StopReason::kConverged;
    if (reason != StopReason::kConverged || m.lane_set.block_lane != nullptr) {
      KeepLast(m, plan, run, lanes);
    }
  } else if (extremes_) {
    NoteTested(m, plan.tested, lanes, step);
  }
  const uint64_t hash = precision::DecisionHash(
      plan.site_hash, static_cast<uint64_t>(step_), static_cast<uint64_t>(event.outer_iteration),
      static_cast<uint64_t>(m.element),
      precision::LoopOutcome(iterations, static_cast<uint64_t>(reason)));
  AddOutcome(m, run, lanes, hash);
  if (target_.instance_sites == nullptr) return;
  InstanceSite& site = (*target_.instance_sites)[static_cast<size_t>(plan.site_index)];
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t row = first_row_ + m.lane_set.BlockLane(j);
    const size_t cell = static_cast<size_t>((step_ - target_.first_step) * target_.instances + row);
    site.iterations[cell] += static_cast<uint32_t>(iterations);
    site.reasons[cell] = static_cast<uint8_t>(reason);
  });
}

void SiteRecorder::AddOutcome(const Machine& m, Run& run, const LaneBits& lanes, uint64_t hash) {
  const LaneBits block = ToBlock(m, lanes);
  if (block == LaneBits::First(lanes_)) {
    path_->common += hash;
    return;
  }
  if (run.outcomes.IsFull()) {
    outcomes_.Keep(run.outcomes, m.kernels(), path_->signature);
    run.outcomes.Clear();
  }
  run.outcomes.Add(m.kernels(), block, hash);
}

void SiteRecorder::KeepLast(const Machine& m, const WhilePlan& plan, Run& run,
                            const LaneBits& lanes) const {
  const float* const a = reinterpret_cast<const float*>(m.at[plan.tested.a]);
  ForEachLane(lanes, [&](int64_t j) { run.last[m.lane_set.BlockLane(j)] = a[j]; });
}

void SiteRecorder::EndRun(const Machine& m, const WhilePlan& plan) {
  Run& run = RunAt(m.depth);
  if (run.deferred && run.lanes.Any()) CountLast(m, plan, run);
  if (!run.outcomes.IsEmpty()) outcomes_.Keep(run.outcomes, m.kernels(), path_->signature);
}

void SiteRecorder::CountLast(const Machine& m, const WhilePlan& plan, const Run& run) {
  TerminationStep& step = StepOf(plan);
  const TestedPair& tested = plan.tested;
  const float* const b = reinterpret_cast<const float*>(m.at[tested.b]);
  TestsBelow below;
  below.ulp_field = static_cast<int>(precision::BitsOf(*b) >> 23) -
                    (precision::Traits(tested.format).precision - 1);
  below.histogram = step.histogram.data();
  const int64_t width = m.block_width();
  if (!run.below || !m.kernels().count_below(run.last, b, run.lanes.word, width, below)) {
    const KeyRange range = m.kernels().key_range[0](run.last, run.lanes.word, width);
    below.lowest = range.lowest;
    below.highest = range.highest;
    m.kernels().margin_buckets[static_cast<size_t>(tested.format)](run.last, b, buckets_.data(),
                                                                   width);
    ForEachLane(run.lanes, [&](int64_t j) {
      if (std::isnan(run.last[j])) return;
      ++step.histogram[static_cast<size_t>(buckets_[static_cast<size_t>(j)])];
    });
  }
  if (below.lowest > below.highest) return;
  step.tested_min = std::min(step.tested_min, NumberOfKey(below.lowest, false));
  step.tested_max = std::max(step.tested_max, NumberOfKey(below.highest, false));
}

// The extremes of the tested values; NaN left out.
void SiteRecorder::NoteTested(const Machine& m, const TestedPair& tested, const LaneBits& lanes,
                              TerminationStep& step) const {
  TerminationStep noted;
  const Slot& a = m.slot(tested.a);
  if (tested.real && !a.uniform) {
    const bool wide = a.carrier == Carrier::kF64;
    const KeyRange range =
        m.kernels().key_range[wide ? 1 : 0](m.at[tested.a], lanes.word, m.lane_set.width);
    if (range.lowest > range.highest) return;
    noted.tested_min = NumberOfKey(range.lowest, wide);
    noted.tested_max = NumberOfKey(range.highest, wide);
    step.Merge(noted);
    return;
  }
  ForEachLane(lanes, [&](int64_t j) {
    const double x = NumberAt(m, tested.a, 0, j);
    if (std::isnan(x)) return;
    noted.tested_min = noted.tested_max = x;
    step.Merge(noted);
  });
}

void SiteRecorder::NoteInstances(Machine& m, const WhilePlan& plan, const LaneBits& lanes) {
  InstanceSite& site = (*target_.instance_sites)[static_cast<size_t>(plan.site_index)];
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t row = first_row_ + m.lane_set.BlockLane(j);
    const size_t cell = static_cast<size_t>((step_ - target_.first_step) * target_.instances + row);
    ++site.value_counts[cell];
    site.values[static_cast<size_t>(row)].push_back(
        precision::Canonical(NumberAt(m, plan.tested.a, 0, j)));
  });
}

}  // namespace simgrad::sim::cpu
