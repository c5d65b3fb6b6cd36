// The smallest margins of the tests of one row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "precision/selection.h"
#include "sim/backend/cpu/machine.h"
#include "sim/backend/cpu/site_recorder.h"

namespace simgrad::sim::cpu {
namespace {

const std::byte* RowAt(const Machine& m, int32_t s, int64_t row) {
  const Slot& slot = m.slot(s);
  return m.at[s] + row * m.width[slot.uniform ? 1 : 0] * slot.lane_bytes();
}

}  // namespace

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
  if (IsBeyond(m, tested, scan, smallest)) return;
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

// Whether no margin of a scan can take the place of the smallest that are kept, A and U ulps, and
// none is NaN, as one comparison per lane shows: |a - b| > A and |a - b| > U ulp(m), where ulp(m)
// is the larger of 2^(e-p+1), 2^e <= m, and 2^emin. The slack is that of the roundings of the
// kernel.
bool SiteRecorder::IsBeyond(const Machine& m, const TestedPair& tested, const MarginScan& scan,
                            const SmallestMargin& smallest) const {
  if (!smallest.any || scan.uniform[0] || !scan.uniform[1]) return false;
  if (m.slot(tested.a).carrier != Carrier::kF32) return false;
  const auto traits = precision::Traits(tested.format);
  const double ulps = std::abs(smallest.ulps);
  const double absolute = std::abs(smallest.absolute);
  // Against zero nothing is rounded, and what only equals the smallest loses to a smaller instance.
  const uint64_t kept = std::max(smallest.absolute_instance, smallest.ulps_instance);
  const bool exact =
      smallest_id_ > kept && absolute > 0x1p-100 && NumberAt(m, tested.b, 0, 0) == 0.0;
  const auto bound = [exact](double x) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (exact && static_cast<double>(static_cast<float>(x)) == x) return static_cast<float>(x);
    return std::nextafter(static_cast<float>(x * (1.0 + 0x1p-20)), kInfinity);
  };
  const float factor = bound(ulps * precision::DoublePowerOfTwo(1 - traits.precision));
  const float least = bound(std::max(absolute, ulps * precision::DoublePowerOfTwo(traits.emin)));
  return m.kernels().margins_beyond(scan, factor, least);
}

// Whether nothing of a scan can take the place of the smallest margins that are kept. |a - b| / ulp
// is the key's number times 2^(p-2). The keys are rounded to the carrier, so they must lie clearly
// above; against b = 0 they are exact, and then the smaller instance wins.
bool SiteRecorder::IsBeaten(const Machine& m, const TestedPair& tested, const MarginScan& scan,
                            const LaneBits& lanes, const SmallestMargin& smallest) const {
  if (!smallest.any) return false;
  const bool wide = m.slot(tested.a).carrier == Carrier::kF64;
  const double scale = precision::DoublePowerOfTwo(precision::Traits(tested.format).precision - 2);
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

}  // namespace simgrad::sim::cpu
