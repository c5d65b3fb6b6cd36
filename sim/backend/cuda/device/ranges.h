// Underflow and overflow of a narrowing conversion, and absorption (RangeCounts and AdditionCounts in
// sim/diagnostics/diagnostics.h).
//
// Errors: none. Threads: pure.
#pragma once

#include "precision/lane.h"

namespace simgrad::sim::cuda::device {

using precision::Format;
using precision::Lane;

struct RangeTally {
  uint64_t underflows = 0;
  uint64_t overflows = 0;
};

// Whether r, a value of F, is below the smallest normal number of F.
template <Format F>
SIMGRAD_HD inline bool IsTiny(double r) {
  constexpr double kSmallestNormal = precision::DoublePowerOfTwo(precision::Traits(F).min_exponent);
  return r < kSmallestNormal && r > -kSmallestNormal;
}

// x became r in F.
template <Format F, class From>
SIMGRAD_HD inline void CountRange(RangeTally& tally, From x, typename Lane<F>::Carrier r) {
  if (!precision::IsFinite(x)) return;
  tally.underflows += x != 0 && IsTiny<F>(static_cast<double>(r)) ? 1 : 0;
  tally.overflows += precision::IsFinite(Lane<F>::Round(x)) ? 0 : 1;
}

// A state was stored: it underflows where it is subnormal, overflows where it is infinite.
template <Format F>
SIMGRAD_HD inline void CountStore(RangeTally& tally, typename Lane<F>::Carrier x) {
  tally.underflows += x != 0 && IsTiny<F>(static_cast<double>(x)) ? 1 : 0;
  tally.overflows += x == x && !precision::IsFinite(x) ? 1 : 0;
}

struct AdditionTally {
  uint64_t additions = 0;
  uint64_t absorbed = 0;
};

// x + y became `stored`, in the format of the state (AdditionCounts::Note).
template <class T>
SIMGRAD_HD inline void CountAddition(AdditionTally& tally, T x, T y, T stored, uint64_t times) {
  if (!precision::IsFinite(x) || !precision::IsFinite(y) || x == 0 || y == 0) return;
  tally.additions += times;
  tally.absorbed += stored == x || stored == y ? times : 0;
}

}  // namespace simgrad::sim::cuda::device
