// The tests of a loop: their margins, number by number only where something is near.
#include <algorithm>
#include <cmath>

#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {
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

// Those of the lanes that are near.
void SiteRecorder::CountNear(const Tests& tests, const LaneBits& lanes) {
  ForEachLane(lanes, [&](int64_t j) {
    if (std::abs(MarginAt(tests.machine, tests.tested, 0, j).ulps) > near_band_ulps_) return;
    ++(tests.held.Has(j) ? tests.step.near_stopped : tests.step.near_continued);
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
  if (wide || !(b >= precision::DoublePowerOfTwo(traits.min_exponent)) || std::isinf(b))
    return false;
  const TestNeighbours found =
      m.kernels().neighbours[0](m.at[tested.a], m.at[tested.b], lanes.word, m.lane_set.width);
  if (found.any_nan) return false;
  double nearest = precision::DoublePowerOfTwo(traits.precision - 1) *
                   (1.0 - b / std::ldexp(1.0, std::ilogb(b) + 1));
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
  if (nearest <= near_band_ulps_) CountNear(tests, lanes);
  const LaneBits ended = tests.ended & lanes;
  if (ended.Any()) CountBuckets(tests, ended);
  return true;
}

// For a loop that ends where a < b. The lanes that hold lie below b, so their largest is the
// neighbour of b below; of the others it is the smallest, above. The smallest |a - b| belongs to a
// neighbour. So does the smallest quotient by the ulp, unless it lies in a binade above that of the
// neighbour above, 2^k <= a < 2^(k+1): there a - b >= 2^j - b, j > k, the ulp is 2^(j-p+1), so it
// is at least 2^(p-1) (1 - b / 2^(k+1)). False: nothing has been counted.
bool SiteRecorder::CountLess(const Tests& tests, const LaneBits& counted) {
  Machine& m = tests.machine;
  const TestedPair& tested = tests.tested;
  const double b = NumberAt(m, tested.b, 0, 0);
  const auto traits = precision::Traits(tested.format);
  const bool wide = m.slot(tested.a).carrier == Carrier::kF64;
  if (wide || !(b >= precision::DoublePowerOfTwo(traits.min_exponent)) || std::isinf(b))
    return false;
  const TestNeighbours found =
      m.kernels().neighbours[0](m.at[tested.a], m.at[tested.b], counted.word, m.lane_set.width);
  if (found.any_nan) return false;
  double nearest = HUGE_VAL;
  double higher = HUGE_VAL;
  if (found.any_above) {
    const double above = NumberOfKey(found.above, false);
    if (!std::isinf(above)) {
      const double end = precision::DoublePowerOfTwo(std::ilogb(above) + 1);
      higher = precision::DoublePowerOfTwo(traits.precision - 1) * (1.0 - b / end);
    }
    nearest = std::min(higher, OfferNeighbour(tests, above, counted));
  }
  if (found.any_below) {
    const double below = NumberOfKey(found.below, false);
    nearest = std::min(nearest, OfferNeighbour(tests, below, tests.held));
  }
  if (nearest <= near_band_ulps_ || higher <= std::abs(tests.step.margin.ulps)) {
    uint64_t nans = 0;
    OfferMargins(m, tested, 0, counted, tests.step.margin, nans);
  }
  if (nearest <= near_band_ulps_) CountNear(tests, counted);
  if (tests.ended.Any()) CountBuckets(tests, tests.ended);
  return true;
}

}  // namespace simgrad::sim::cpu
