// How the threads of a block join what they saw in a step, deterministically.
//
// How: the tallies of a step are joined over each warp, and by its first thread into the block's
//   slot of that step (two slots take turns): sums and smallest magnitudes by integer atomics,
//   then, behind a barrier, the smallest key among those that attain the magnitude; behind another,
//   the slot becomes the block's partial column and is cleared for the step after next.
// Errors: none. Threads: of one block, all at the same step; a join of tallies takes whole warps.
#pragma once

#include "sim/backend/cuda/device/columns.h"
#include "sim/backend/cuda/device/diagnostics.h"
#include "sim/backend/cuda/device/ranges.h"
#include "sim/backend/cuda/device/warp.h"

namespace simgrad::sim::cuda::device {

// The parts of a tally that changed in any thread of a warp.
enum TallyParts : uint32_t {
  kSomeChecks = 1,
  kSomeNanMargins = 2,
  kSomeMargins = 4,
  kSomeNearStopped = 8,
  kSomeNearContinued = 16,
  kSomeTested = 32,
  kSomeHeld = 64,
  kSomeChanges = 128,
  kSomeReason = 256,     // shifted by the reason
  kSomeLarge = 1u << 31  // a count does not fit the 32-bit sum of a warp
};

SIMGRAD_HD constexpr uint32_t If(bool condition, uint32_t part) { return condition ? part : 0; }

// One warp at one column of its block.
struct Joiner {
  bool first;      // this thread speaks for its warp
  uint32_t parts;  // TallyParts of any thread

  __device__ bool Has(uint32_t part) const { return (parts & part) != 0; }
  __device__ unsigned long long Total(unsigned long long x) const {
    return WarpSum(x, Has(kSomeLarge));
  }
  __device__ void Add(uint32_t part, unsigned long long& to, unsigned long long x) const {
    if (!Has(part)) return;
    const unsigned long long total = Total(x);
    if (first) atomicAdd(&to, total);
  }
  __device__ void Lower(uint32_t part, unsigned long long& to, unsigned long long x) const {
    if (!Has(part)) return;
    const unsigned long long least = WarpLeast(x);
    if (first) atomicMin(&to, least);
  }
  __device__ void Raise(uint32_t part, unsigned long long& to, unsigned long long x) const {
    if (!Has(part)) return;
    const unsigned long long most = WarpMost(x);
    if (first) atomicMax(&to, most);
  }
  __device__ void Nearest(ExtremeMargin& to, const NearestValue& x) const {
    Lower(kSomeMargins, reinterpret_cast<unsigned long long&>(to.magnitude), x.magnitude);
  }
};

__device__ inline void Join(TerminationColumn& to, const TerminationTally& x) {
  uint32_t parts = If(x.checks != 0, kSomeChecks) | If(x.nan_margins != 0, kSomeNanMargins) |
                   If(x.absolute.magnitude != kNoMargin, kSomeMargins) |
                   If(x.near_stopped != 0, kSomeNearStopped) |
                   If(x.near_continued != 0, kSomeNearContinued) |
                   If(x.tested_min != kNoMinimum || x.tested_max != kNoMaximum, kSomeTested) |
                   If((x.checks | x.iterations_sum) >= kLargeCount, kSomeLarge);
  for (int k = 0; k < kReasons; ++k) parts |= If(x.reasons[k] != 0, kSomeReason << k);
  const Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Add(kSomeChecks, to.checks, x.checks);
  join.Nearest(to.absolute, x.absolute);
  join.Nearest(to.ulps, x.ulps);
  join.Add(kSomeNearStopped, to.near_stopped, x.near_stopped);
  join.Add(kSomeNearContinued, to.near_continued, x.near_continued);
  join.Add(kSomeNanMargins, to.nan_margins, x.nan_margins);
  if (!join.Has(((1u << kReasons) - 1) * kSomeReason)) return;  // nothing ran
  unsigned long long runs = 0;
  for (int k = 0; k < kReasons; ++k) {
    if (!join.Has(kSomeReason << k)) continue;
    const unsigned long long total = join.Total(x.reasons[k]);
    runs += total;
    if (join.first) atomicAdd(&to.reasons[k], total);
  }
  const unsigned long long iterations = join.Total(x.iterations_sum);
  const uint32_t fewest = WarpLeast(x.iterations_min);
  const uint32_t most = WarpMost(x.iterations_max);
  if (join.first) {
    atomicAdd(&to.runs, runs);
    if (iterations != 0) atomicAdd(&to.iterations_sum, iterations);
    atomicMin(&to.iterations_min, fewest);
    atomicMax(&to.iterations_max, most);
  }
  join.Lower(kSomeTested, to.tested_min, x.tested_min);
  join.Raise(kSomeTested, to.tested_max, x.tested_max);
}
__device__ inline void Join(EventColumn& to, const EventTally& x) {
  const uint32_t parts = If(x.checks != 0, kSomeChecks) | If(x.count != 0, kSomeHeld) |
                         If(x.changes != 0, kSomeChanges) |
                         If(x.nan_margins != 0, kSomeNanMargins) |
                         If(x.absolute.magnitude != kNoMargin, kSomeMargins) |
                         If((x.checks | x.count | x.changes) >= kLargeCount, kSomeLarge);
  const Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Add(kSomeChecks, to.checks, x.checks);
  join.Add(kSomeHeld, to.count, x.count);
  join.Add(kSomeChanges, to.changes, x.changes);
  join.Add(kSomeNanMargins, to.nan_margins, x.nan_margins);
  join.Nearest(to.absolute, x.absolute);
  join.Nearest(to.ulps, x.ulps);
}
__device__ inline void Join(StateColumn& to, const StateTally& x) {
  enum : uint32_t {
    kFinite = 1,
    kSmallest = 2,
    kSubnormals = 4,
    kZeros = 8,
    kNans = 16,
    kInf = 32
  };
  const uint32_t parts =
      If(x.min != kNoMinimum || x.max != kNoMaximum, kFinite) |
      If(x.smallest != kNoMinimum, kSmallest) | If(x.subnormals != 0, kSubnormals) |
      If(x.zeros != 0, kZeros) | If(x.nans != 0, kNans) | If(x.infinities != 0, kInf) |
      If((x.subnormals | x.zeros | x.nans | x.infinities) >= kLargeCount, kSomeLarge);
  const Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Lower(kFinite, to.min, x.min);
  join.Raise(kFinite, to.max, x.max);
  join.Lower(kSmallest, to.smallest, x.smallest);
  join.Add(kSubnormals, to.subnormals, x.subnormals);
  join.Add(kZeros, to.zeros, x.zeros);
  join.Add(kNans, to.nans, x.nans);
  join.Add(kInf, to.infinities, x.infinities);
}

// Behind a barrier after the join of all; few threads attain the magnitude.
__device__ inline void JoinKey(ExtremeMargin& to, const NearestValue& x) {
  if (x.magnitude == kNoMargin || x.magnitude != to.magnitude) return;
  atomicMin(reinterpret_cast<unsigned long long*>(&to.key), static_cast<unsigned long long>(x.key));
}
template <class Column, class Tally>
__device__ inline void JoinKeys(Column& to, const Tally& x) {
  JoinKey(to.absolute, x.absolute);
  JoinKey(to.ulps, x.ulps);
}

// Raises the tape units of a step to the most of any instance. Most warps find it there already.
__device__ inline void RaiseTapeUnits(unsigned long long* to, unsigned long long units) {
  const unsigned long long most = WarpMost(units);
  if (IsFirstOfWarp() && most > *static_cast<volatile unsigned long long*>(to)) atomicMax(to, most);
}

// One cotangent that leaves the adjoint of a step; not of whole warps.
__device__ inline void Join(BackwardColumn& to, double cotangent) {
  const double magnitude = precision::Abs(cotangent);
  if (!precision::IsFinite(magnitude)) {
    atomicAdd(&to.nonfinite, 1u);
    return;
  }
  const unsigned long long bits = BitsOf(magnitude);
  // The largest only grows: what is not above an old one is not above the new one.
  if (bits > *static_cast<volatile unsigned long long*>(&to.largest)) atomicMax(&to.largest, bits);
  atomicAdd(&to.exponents[ExponentBucket(magnitude)], 1u);
}

// At the end of a launch.
__device__ inline void Join(RangeColumn& to, int role, const RangeTally& x) {
  if (x.underflows != 0) {
    atomicAdd(&to.underflows[role], static_cast<unsigned long long>(x.underflows));
  }
  if (x.overflows != 0) {
    atomicAdd(&to.overflows[role], static_cast<unsigned long long>(x.overflows));
  }
}

__device__ inline void Join(AdditionColumn& to, const AdditionTally& x) {
  if (x.additions != 0) {
    atomicAdd(&to.additions, static_cast<unsigned long long>(x.additions));
  }
  if (x.absorbed != 0) atomicAdd(&to.absorbed, static_cast<unsigned long long>(x.absorbed));
}

// The columns of one step of one block.
template <int kTerminations, int kEvents, int kStates>
struct StepSlot {
  TerminationColumn termination[kTerminations > 0 ? kTerminations : 1];
  EventColumn event[kEvents > 0 ? kEvents : 1];
  StateColumn state[kStates > 0 ? kStates : 1];

  __device__ void Clear() {
    OnColumns(termination, termination, kTerminations, ClearWord{});
    OnColumns(event, event, kEvents, ClearWord{});
    OnColumns(state, state, kStates, ClearWord{});
  }
  // Hands the slot over to the block's partial of a column (and of a sample, where >= 0).
  __device__ void Leave(const KernelArgs& args, int64_t column, int64_t sample, bool first) {
    const int64_t place = static_cast<int64_t>(blockIdx.x) * args.count + column;
    Leave(args.termination_partial + place * kTerminations, termination, kTerminations, first);
    Leave(args.event_partial + place * kEvents, event, kEvents, first);
    if (sample < 0) return;
    const int64_t sampled = static_cast<int64_t>(blockIdx.x) * args.samples + sample;
    Leave(args.state_partial + sampled * kStates, state, kStates, first);
  }

 private:
  template <class Column>
  __device__ static void Leave(Column* to, Column* from, int count, bool first) {
    if (first) {
      OnColumns(to, from, count, CopyWord{});
    } else {
      OnColumns(to, from, count, MergeWord{});
    }
    // The same thread has the same words in both.
    OnColumns(from, from, count, ClearWord{});
  }
};

}  // namespace simgrad::sim::cuda::device
