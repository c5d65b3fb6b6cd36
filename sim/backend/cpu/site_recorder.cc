#include "sim/backend/cpu/site_recorder.h"

#include <algorithm>
#include <cmath>

#include "precision/hash.h"
#include "precision/selection.h"
#include "sim/backend/cpu/machine.h"

namespace simgrad::sim::cpu {
namespace {

const std::byte* RowAt(const Machine& m, int32_t s, int64_t row) {
  const Slot& slot = m.slot(s);
  return m.at[s] + row * m.width[slot.uniform ? 1 : 0] * slot.lane_bytes();
}

// The running positions of a layout that stand for an instance.
LaneBits CountedOf(const Machine& m) { return m.lane_set.counted & m.lane_set.running; }

// Below this few lanes a scan of all of them does not pay.
constexpr int64_t kFewLanes = 24;

}  // namespace

double NumberAt(const Machine& m, int32_t s, int64_t row, int64_t lane) {
  const Slot& slot = m.slot(s);
  const int64_t i = row * m.width[slot.uniform ? 1 : 0] + (slot.uniform ? 0 : lane);
  const std::byte* at = m.at[s];
  switch (slot.carrier) {
    case Carrier::kF32:
      return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
    case Carrier::kF64:
      return reinterpret_cast<const double*>(at)[i];
    case Carrier::kI32:
      return static_cast<double>(reinterpret_cast<const int32_t*>(at)[i]);
    case Carrier::kI64:
      return static_cast<double>(reinterpret_cast<const int64_t*>(at)[i]);
    case Carrier::kMask:
      break;
  }
  return reinterpret_cast<const int32_t*>(at)[i] != 0 ? 1.0 : 0.0;
}

SiteRecorder::SiteRecorder(const NumericalProgram&, double near_band_ulps)
    : near_band_ulps_(near_band_ulps), buckets_(kMaxBlockWidth) {}

void SiteRecorder::BeginBlock(PathBlock* path, const uint64_t* ids, int64_t first_row,
                              int64_t lanes, ChunkTarget target) {
  path_ = path;
  ids_ = ids;
  ascending_ids_ = std::is_sorted(ids, ids + lanes);
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

// Positions ascend with the lanes of the block.
uint64_t SiteRecorder::SmallestId(const Machine& machine, const LaneBits& lanes) const {
  if (ascending_ids_) return IdAt(machine, lanes.Lowest());
  uint64_t smallest = ~uint64_t{0};
  ForEachLane(lanes, [&](int64_t j) { smallest = std::min(smallest, IdAt(machine, j)); });
  return smallest;
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
  if (m.lane_set.block_lane != nullptr) {
    ForEachLane(lanes, [&](int64_t j) {
      path_->signature[static_cast<size_t>(m.lane_set.BlockLane(j))] += hash;
    });
  } else if (lanes == LaneBits::First(lanes_)) {
    path_->common += hash;
  } else {
    m.kernels().add_where(path_->signature.data(), hash, lanes.word, m.lane_set.width);
  }
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
  if (plan.has_entry && event.iteration == 0) {
    // Who is refused ends here; NaN is among them, so they are not just those below.
    CountTests({m, plan.entry_tested, step, refused, refused, false}, counted);
  }
  held_range_known_ = false;
  if (tested.Any()) {
    const bool less = plan.stop.comparison == Comparison::kLt;
    CountTests({m, plan.tested, step, held, held | capped, less}, tested);
  }
  if (refused.Any()) EndRuns(m, plan, step, event, refused, StopReason::kNotEntered);
  if (held.Any()) {
    EndRuns(m, plan, step, event, held, StopReason::kConverged,
            held_range_known_ ? &held_range_ : nullptr);
  }
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

void SiteRecorder::CountOneTest(const Tests& tests, const precision::Margin& margin, int64_t lane,
                                uint64_t times, uint64_t instance) {
  TerminationStep& step = tests.step;
  if (IsNan(margin)) {
    step.nan_margins += times;
    return;
  }
  const double magnitude = std::abs(margin.ulps);
  step.margin.Offer(margin.absolute, margin.ulps, instance);
  if (magnitude <= near_band_ulps_) {
    (tests.held.Has(lane) ? step.near_stopped : step.near_continued) += times;
  }
  if (tests.ended.Has(lane)) {
    step.histogram[static_cast<size_t>(MarginBucket(magnitude))] += static_cast<uint32_t>(times);
  }
}

// Lanes whose tested pair is the same, to the bit.
void SiteRecorder::CountEqualTests(const Tests& tests, const LaneBits& lanes) {
  const int64_t first = lanes.Lowest();
  CountOneTest(tests, MarginAt(tests.machine, tests.tested, 0, first), first,
               static_cast<uint64_t>(lanes.Count()), SmallestId(tests.machine, lanes));
}

void SiteRecorder::CountEachTest(const Tests& tests, const LaneBits& lanes) {
  ForEachLane(lanes, [&](int64_t j) {
    CountOneTest(tests, MarginAt(tests.machine, tests.tested, 0, j), j, 1, IdAt(tests.machine, j));
  });
}

void SiteRecorder::CountTests(const Tests& tests, const LaneBits& counted) {
  tests.step.checks += static_cast<uint64_t>(counted.Count());
  Machine& m = tests.machine;
  const TestedPair& tested = tests.tested;
  const Slot& a = m.slot(tested.a);
  const bool simple =
      tested.real && !a.uniform && m.slot(tested.b).uniform && tested.extras.empty();
  if (simple && tests.less && CountLess(tests, counted)) return;
  LaneBits rest = counted;
  // Twice: most lanes have one value (a sum that is exactly zero), or a second one.
  for (int round = 0; simple && round < 2 && rest.Any(); ++round) {
    const int64_t first = rest.Lowest();
    LaneBits same;
    m.kernels().equal_bits[SizeIndex(a.carrier)](
        m.at[tested.a], m.at[tested.a] + first * a.lane_bytes(), same.word, m.lane_set.width);
    same = same & rest;
    CountEqualTests(tests, same);
    rest = rest - same;
  }
  if (!rest.Any()) return;
  if (!simple || rest.Count() < kFewLanes || !CountManyTests(tests, rest)) {
    CountEachTest(tests, rest);
  }
}

// Offers the margin of the lanes that have the value a; returns it in ulps, without its sign.
double SiteRecorder::OfferNeighbour(const Tests& tests, double a, const LaneBits& lanes) {
  Machine& m = tests.machine;
  const double b = NumberAt(m, tests.tested.b, 0, 0);
  const precision::Margin margin = precision::MarginOf(tests.tested.format, a, b);
  const SmallestMargin& best = tests.step.margin;
  const bool improves = !best.any || std::abs(margin.absolute) <= std::abs(best.absolute) ||
                        std::abs(margin.ulps) <= std::abs(best.ulps);
  if (!improves) return std::abs(margin.ulps);
  const bool wide = m.slot(tests.tested.a).carrier == Carrier::kF64;
  const float narrow = static_cast<float>(a);
  LaneBits equal;
  m.kernels().compare_bits[static_cast<int>(Comparison::kEq)][wide ? 1 : 0](
      m.at[tests.tested.a], wide ? static_cast<const void*>(&a) : &narrow, equal.word,
      m.lane_set.width);
  tests.step.margin.Offer(margin.absolute, margin.ulps, SmallestId(m, equal & lanes));
  return std::abs(margin.ulps);
}

void SiteRecorder::CountBuckets(const Tests& tests, const LaneBits& lanes) {
  Machine& m = tests.machine;
  m.kernels().margin_buckets[static_cast<size_t>(tests.tested.format)](
      m.at[tests.tested.a], m.at[tests.tested.b], buckets_.data(), m.lane_set.width);
  ForEachLane(lanes, [&](int64_t j) {
    ++tests.step.histogram[static_cast<size_t>(buckets_[static_cast<size_t>(j)])];
  });
}

// Tests of values a against one threshold b > 0. The smallest |a - b| belongs to a neighbour of b.
// So does the smallest quotient by the ulp, unless it lies in a higher binade than b, where it is
// at least 2^(p-1) (1 - b / 2^(e+1)), 2^e <= b < 2^(e+1): there a - b >= 2^k - b, the ulp is
// 2^(k-p+1), k > e; and below -b it is larger still. False: nothing has been counted.
bool SiteRecorder::CountManyTests(const Tests& tests, const LaneBits& lanes) {
  Machine& m = tests.machine;
  const TestedPair& tested = tests.tested;
  const bool wide = m.slot(tested.a).carrier == Carrier::kF64;
  const double b = NumberAt(m, tested.b, 0, 0);
  const auto traits = precision::Traits(tested.format);
  if (wide || !(b >= std::ldexp(1.0, traits.min_exponent)) || std::isinf(b)) return false;
  const TestNeighbours found =
      m.kernels().neighbours[0](m.at[tested.a], m.at[tested.b], lanes.word, m.lane_set.width);
  if (found.any_nan) return false;
  double nearest =
      std::ldexp(1.0, traits.precision - 1) * (1.0 - b / std::ldexp(1.0, std::ilogb(b) + 1));
  const bool higher_binades = found.any_above;
  const double in_higher = nearest;
  for (const bool above : {false, true}) {
    if (above ? !found.any_above : !found.any_below) continue;
    const double a = NumberOfKey(above ? found.above : found.below, wide);
    nearest = std::min(nearest, OfferNeighbour(tests, a, lanes));
  }
  if (nearest <= near_band_ulps_ ||
      (higher_binades && in_higher <= std::abs(tests.step.margin.ulps))) {
    uint64_t nans = 0;
    OfferMargins(m, tested, 0, lanes, tests.step.margin, nans);
  }
  if (nearest <= near_band_ulps_) {
    ForEachLane(lanes, [&](int64_t j) {
      if (std::abs(MarginAt(m, tested, 0, j).ulps) > near_band_ulps_) return;
      ++(tests.held.Has(j) ? tests.step.near_stopped : tests.step.near_continued);
    });
  }
  const LaneBits ended = tests.ended & lanes;
  if (ended.Any()) CountBuckets(tests, ended);
  return true;
}

// The extremes of the tested values; NaN left out.
void SiteRecorder::NoteTested(const Machine& m, const TestedPair& tested, const LaneBits& lanes,
                              TerminationStep& step, const KeyRange* known) const {
  TerminationStep noted;
  const Slot& a = m.slot(tested.a);
  if (tested.real && !a.uniform) {
    const bool wide = a.carrier == Carrier::kF64;
    const KeyRange range = known != nullptr ? *known
                                            : m.kernels().key_range[wide ? 1 : 0](
                                                  m.at[tested.a], lanes.word, m.lane_set.width);
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

void SiteRecorder::EndRuns(Machine& m, const WhilePlan& plan, TerminationStep& step,
                           const LoopTestEvent& event, const LaneBits& lanes, StopReason reason,
                           const KeyRange* range) {
  const uint64_t runs = static_cast<uint64_t>(lanes.Count());
  const uint64_t iterations = static_cast<uint64_t>(event.iteration);
  step.runs += runs;
  step.iterations_sum += runs * iterations;
  step.iterations_min = std::min(step.iterations_min, static_cast<uint32_t>(iterations));
  step.iterations_max = std::max(step.iterations_max, static_cast<uint32_t>(iterations));
  step.iterations[IterationBucket(iterations)] += static_cast<uint32_t>(runs);
  step.reasons[static_cast<size_t>(reason)] += runs;
  NoteTested(m, plan.tested, lanes, step, range);
  const uint64_t hash = precision::DecisionHash(
      plan.site_hash, static_cast<uint64_t>(step_), static_cast<uint64_t>(event.outer_iteration),
      static_cast<uint64_t>(m.element),
      precision::LoopOutcome(iterations, static_cast<uint64_t>(reason)));
  AddSignature(m, lanes, hash);
  if (target_.instance_sites == nullptr) return;
  InstanceSite& site = (*target_.instance_sites)[static_cast<size_t>(plan.site_index)];
  ForEachLane(lanes, [&](int64_t j) {
    const int64_t row = first_row_ + m.lane_set.BlockLane(j);
    const size_t cell = static_cast<size_t>((step_ - target_.first_step) * target_.instances + row);
    site.iterations[cell] += static_cast<uint32_t>(iterations);
    site.reasons[cell] = static_cast<uint8_t>(reason);
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

// ---- Margins of a row.

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
                                const LaneBits& lanes, SmallestMargin& smallest, uint64_t& nans) {
  const Slot& a = m.slot(tested.a);
  if (!tested.real || !tested.plain_extras || tested.extras.size() > 4 ||
      lanes.Count() < kFewLanes) {
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
  if (lanes != LaneBits::First(scan.width)) {
    int32_t* const mask = m.ScratchAt(m.depth).mask;
    m.kernels().expand_bits(lanes.word, mask, scan.width);
    scan.executed = mask;
  }
  const size_t format = static_cast<size_t>(tested.format);
  m.kernels().margins[format](scan);
  if (scan.any_nan || a.uniform || !scan.uniform[1]) {
    return OfferEach(m, tested, row, lanes, smallest, nans);
  }
  if (IsBeaten(m, tested, scan, lanes, smallest)) return;
  LaneBits candidates[2];
  m.kernels().margin_candidates[format](scan, candidates[0].word, candidates[1].word);
  for (LaneBits rest : candidates) {
    // Lanes with one a have one |a - b| and, where their quotients are next to each other, one ulp.
    for (rest = rest & lanes; rest.Any();) {
      const int64_t first = rest.Lowest();
      LaneBits same;
      m.kernels().equal_bits[SizeIndex(a.carrier)](
          scan.a, static_cast<const std::byte*>(scan.a) + first * a.lane_bytes(), same.word,
          scan.width);
      same = same & rest;
      const precision::Margin margin = MarginAt(m, tested, row, first);
      smallest.Offer(margin.absolute, margin.ulps, SmallestId(m, same));
      rest = rest - same;
    }
  }
}

// Whether nothing of a scan can take the place of the smallest margins that are kept. |a - b| / ulp
// is the key's number times 2^(p-2). The keys are rounded to the carrier, so they must lie clearly
// above; against b = 0 they are exact, and then the smaller instance wins.
bool SiteRecorder::IsBeaten(const Machine& m, const TestedPair& tested, const MarginScan& scan,
                            const LaneBits& lanes, const SmallestMargin& smallest) const {
  if (!smallest.any) return false;
  const bool wide = m.slot(tested.a).carrier == Carrier::kF64;
  const double scale = std::ldexp(1.0, precision::Traits(tested.format).precision - 2);
  const double absolute = NumberOfKey(scan.smallest_absolute, wide);
  const double quotient = NumberOfKey(scan.smallest_ulps, wide);
  const double ulps = quotient * scale;
  constexpr double kSlack = 1.0 - 0x1p-20;
  const bool exact = NumberAt(m, tested.b, 0, 0) == 0.0 && quotient > 0x1p-100;
  const uint64_t id = SmallestId(m, lanes);
  const auto loses = [&](double offered, double kept, uint64_t kept_id) {
    if (offered * kSlack > std::abs(kept)) return true;
    return exact && (offered > std::abs(kept) || (offered == std::abs(kept) && id > kept_id));
  };
  return loses(absolute, smallest.absolute, smallest.absolute_instance) &&
         loses(ulps, smallest.ulps, smallest.ulps_instance);
}

// ---- Events.

// Positions of the current layout as lanes of the block.
LaneBits SiteRecorder::ToBlock(const Machine& m, const LaneBits& lanes) const {
  if (m.lane_set.block_lane == nullptr) return lanes;
  LaneBits block;
  ForEachLane(lanes, [&](int64_t j) { block.Add(m.lane_set.block_lane[j]); });
  return block;
}

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
    const LaneBits value = bits_at(plan.result, row);
    const LaneBits guarded = plan.guard >= 0 ? bits_at(plan.guard, row) : counted;
    CountChanges(m, plan, row, counted, value, step);
    step.count += static_cast<uint64_t>(value.Count());
    step.checks += static_cast<uint64_t>(guarded.Count());
    if (guarded.Any()) OfferMargins(m, plan.tested, row, guarded, step.margin, step.nan_margins);
  }
}

void RunEvent(const Instruction& instruction, Lanes& lanes) {
  Machine& machine = static_cast<Machine&>(lanes);
  if (machine.sites == nullptr) return;
  machine.sites->Event(machine, *static_cast<const EventPlan*>(instruction.plan));
}

}  // namespace simgrad::sim::cpu
