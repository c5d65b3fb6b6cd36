// The tests of a loop that ends where a < b, one number b > 0 for all lanes: counted by passes over
// the lanes that look for extremes, and number by number only where something is near.
#include <algorithm>
#include <cmath>

#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {
namespace {

// Below this few lanes a pass over all of them does not pay.
constexpr int64_t kFew = 4;

}  // namespace

// The lanes that hold lie below b, so their largest is the neighbour of b below; of the others it
// is the smallest, above. The smallest |a - b| belongs to a neighbour. So does the smallest
// quotient by the ulp, unless it lies in a binade above that of the neighbour above, 2^k <= a <
// 2^(k+1): there a - b >= 2^j - b, j > k, the ulp is 2^(j-p+1), so it is at least 2^(p-1) (1 - b /
// 2^(k+1)). False: nothing has been counted.
bool SiteRecorder::CountLess(const Tests& tests, const LaneBits& counted) {
  Machine& m = tests.machine;
  const TestedPair& tested = tests.tested;
  const KernelTable& kernels = m.kernels();
  const int64_t width = m.lane_set.width;
  const double b = NumberAt(m, tested.b, 0, 0);
  const auto traits = precision::Traits(tested.format);
  const bool wide = m.slot(tested.a).carrier == Carrier::kF64;
  if (wide || !(b >= std::ldexp(1.0, traits.min_exponent)) || std::isinf(b)) return false;
  const std::byte* const a = m.at[tested.a];
  const LaneBits& held = tests.held;
  const TestNeighbours found = kernels.neighbours[0](a, m.at[tested.b], counted.word, width);
  if (found.any_nan) return false;
  double nearest = HUGE_VAL;
  double higher = HUGE_VAL;
  if (found.any_above) {
    const double above = NumberOfKey(found.above, false);
    if (!std::isinf(above)) {
      const double end = std::ldexp(1.0, std::ilogb(above) + 1);
      higher = std::ldexp(1.0, traits.precision - 1) * (1.0 - b / end);
    }
    nearest = std::min(higher, OfferNeighbour(tests, above, counted));
  }
  if (found.any_below) {
    held_range_ = found.zero_signs_lost ? kernels.key_range[0](a, held.word, width)
                                        : KeyRange{found.lowest, found.below};
    held_range_known_ = true;
    nearest = std::min(nearest, OfferNeighbour(tests, NumberOfKey(found.below, false), held));
  }
  if (nearest <= near_band_ulps_ || higher <= std::abs(tests.step.margin.ulps)) {
    uint64_t nans = 0;
    OfferMargins(m, tested, 0, counted, tests.step.margin, nans);
  }
  if (nearest <= near_band_ulps_) {
    ForEachLane(counted, [&](int64_t j) {
      if (std::abs(MarginAt(m, tested, 0, j).ulps) > near_band_ulps_) return;
      ++(held.Has(j) ? tests.step.near_stopped : tests.step.near_continued);
    });
  }
  if (found.any_above) {
    const LaneBits capped = (tests.ended & counted) - held;
    if (capped.Any()) CountBuckets(tests, capped);
  }
  if (found.any_below && !CountBucketsLess(tests, held)) CountBuckets(tests, held);
  return true;
}

// The buckets of lanes with -b <= a < b: all have the ulp of b, so a bucket is an interval of a.
// Bucket n ends at 2^(n-1) ulps; b less that is a number of the format.
bool SiteRecorder::CountBucketsLess(const Tests& tests, const LaneBits& held) {
  Machine& m = tests.machine;
  const TestedPair& tested = tests.tested;
  const double b = NumberAt(m, tested.b, 0, 0);
  const double lowest = NumberOfKey(held_range_.lowest, false);
  if (!(lowest >= -b)) return false;
  const auto bucket_of = [&](double a) {
    return MarginBucket(std::abs(precision::MarginOf(tested.format, a, b).ulps));
  };
  const int last = bucket_of(lowest);
  const int first = bucket_of(NumberOfKey(held_range_.highest, false));
  const double ulp = precision::Ulp(tested.format, b);
  LaneBits rest = held;
  int64_t count = rest.Count();
  for (int n = last; n > first; --n) {
    const float edge = static_cast<float>(b - std::ldexp(ulp, n - 2));
    LaneBits nearer;
    m.kernels().compare_share[static_cast<int>(Comparison::kGe)][0](
        m.at[tested.a], &edge, rest.word, nearer.word, m.lane_set.width);
    const int64_t left = nearer.Count();
    tests.step.histogram[static_cast<size_t>(n)] += static_cast<uint32_t>(count - left);
    rest = nearer;
    count = left;
    if (count > kFew) continue;
    ForEachLane(rest, [&](int64_t j) {
      ++tests.step.histogram[static_cast<size_t>(bucket_of(NumberAt(m, tested.a, 0, j)))];
    });
    return true;
  }
  tests.step.histogram[static_cast<size_t>(first)] += static_cast<uint32_t>(count);
  return true;
}

}  // namespace simgrad::sim::cpu
