// How the threads of a block join what they saw in a step, in whatever order they come to it.
//
// How: a block has a slot for each of the next steps (a window of them). A warp joins the tallies of
//   its threads and adds them to the slot: counts by atomics, an extreme only where it is beyond the
//   slot's, which is rare. Warps wait for each other where two improve a margin at once; behind a barrier
//   at the end of the window the slots become the block's partial columns, and are cleared.
// Errors: none. Threads: of one block; a join of tallies takes whole warps.
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

// Adds to a count of 64 bits by atomics of 32. In shared memory an addition of 64 bits is a loop.
__device__ inline void AddTo(unsigned long long& to, unsigned long long x) {
  uint32_t* const halves = reinterpret_cast<uint32_t*>(&to);  // the lower one first
  const uint32_t low = static_cast<uint32_t>(x);
  const uint32_t before = atomicAdd(&halves[0], low);
  const uint32_t high = static_cast<uint32_t>(x >> 32) + (before + low < low ? 1 : 0);
  if (high != 0) atomicAdd(&halves[1], high);
}

// Memory that other warps write, as it is.
template <class T>
__device__ inline T Now(const T& x) {
  return *static_cast<const volatile T*>(&x);
}

// Extremes only move one way: what is not beyond an old one is not beyond the new one.
template <class T>
__device__ inline void LowerTo(T& to, T x) {
  if (x < Now(to)) atomicMin(&to, x);
}
template <class T>
__device__ inline void RaiseTo(T& to, T x) {
  if (x > Now(to)) atomicMax(&to, x);
}

__device__ inline void Put(uint64_t& to, unsigned long long x) {
  atomicExch(reinterpret_cast<unsigned long long*>(&to), x);
}

// One warp at one slot of its block.
struct Joiner {
  bool first;      // this thread speaks for its warp
  uint32_t parts;  // TallyParts of any thread
  // Each of the first threads of the warp holds one count to add; one instruction adds them all.
  unsigned counts = 0;
  unsigned long long* to_add = nullptr;
  unsigned long long addend = 0;

  __device__ bool Has(uint32_t part) const { return (parts & part) != 0; }
  __device__ unsigned long long Total(uint32_t x) const { return WarpSum(x, Has(kSomeLarge)); }
  // `total` of the warp, for the next thread without one.
  __device__ void AddTotal(unsigned long long& to, unsigned long long total) {
    if (counts >= WarpThreads()) {
      if (first) AddTo(to, total);
    } else if ((threadIdx.x & 31u) == counts++) {
      to_add = &to;
      addend = total;
    }
  }
  __device__ void Add(uint32_t part, unsigned long long& to, uint32_t x) {
    if (Has(part)) AddTotal(to, Total(x));
  }
  __device__ void AddAll() const {
    if (to_add != nullptr) AddTo(*to_add, addend);
  }
  __device__ void Lower(uint32_t part, unsigned long long& to, unsigned long long x) const {
    if (!Has(part)) return;
    const unsigned long long least = WarpLeast(x);
    if (first) LowerTo(to, least);
  }
  __device__ void Raise(uint32_t part, unsigned long long& to, unsigned long long x) const {
    if (!Has(part)) return;
    const unsigned long long most = WarpMost(x);
    if (first) RaiseTo(to, most);
  }
  // Keeps the smaller magnitude, then the smaller key. The lock's holder writes the key before the
  // magnitude. A warp that reads the magnitude, then the key, and loses to both, loses to what comes, too.
  __device__ void Nearest(uint32_t& lock, ExtremeMargin& to, const NearestValue& x,
                          uint32_t rank) const {
    if (!Has(kSomeMargins)) return;
    const unsigned long long least = WarpLeast(static_cast<unsigned long long>(x.magnitude));
    if (!WarpAny(first && least <= Now(to.magnitude))) return;
    const unsigned long long key = WarpLeast(static_cast<unsigned long long>(
        x.magnitude == least ? MarginKey(rank, x.mark) : kNoMargin));
    if (!first) return;
    __threadfence_block();
    if (least == Now(to.magnitude)) {
      __threadfence_block();
      if (key >= Now(to.key)) return;
    }
    while (atomicCAS(&lock, 0u, 1u) != 0) {
    }
    __threadfence_block();
    const uint64_t nearest = Now(to.magnitude);
    if (least < nearest || (least == nearest && key < Now(to.key))) {
      Put(to.key, key);
      __threadfence_block();
      Put(to.magnitude, least);
    }
    __threadfence_block();
    atomicExch(&lock, 0u);
  }
};

__device__ inline void Join(uint32_t& lock, TerminationColumn& to, const TerminationTally& x,
                            uint32_t rank) {
  uint32_t parts = If(x.checks != 0, kSomeChecks) | If(x.nan_margins != 0, kSomeNanMargins) |
                   If(x.absolute.magnitude != kNoMargin, kSomeMargins) |
                   If(x.near_stopped != 0, kSomeNearStopped) |
                   If(x.near_continued != 0, kSomeNearContinued) |
                   If(x.tested_min != kNoMinimum || x.tested_max != kNoMaximum, kSomeTested) |
                   If((x.checks | x.iterations_sum) >= kLargeCount, kSomeLarge);
  for (int k = 0; k < kReasons; ++k) parts |= If(x.reasons[k] != 0, kSomeReason << k);
  Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Nearest(lock, to.absolute, x.absolute, rank);
  join.Nearest(lock, to.ulps, x.ulps, rank);
  join.Add(kSomeChecks, to.checks, x.checks);
  join.Add(kSomeNearStopped, to.near_stopped, x.near_stopped);
  join.Add(kSomeNearContinued, to.near_continued, x.near_continued);
  join.Add(kSomeNanMargins, to.nan_margins, x.nan_margins);
  if (join.Has(((1u << kReasons) - 1) * kSomeReason)) {  // it ran
    unsigned long long runs = 0;
    for (int k = 0; k < kReasons; ++k) {
      if (!join.Has(kSomeReason << k)) continue;
      const unsigned long long total = join.Total(x.reasons[k]);
      runs += total;
      join.AddTotal(to.reasons[k], total);
    }
    join.AddTotal(to.runs, runs);
    join.AddTotal(to.iterations_sum, join.Total(x.iterations_sum));
    const uint32_t fewest = WarpLeast(x.iterations_min);
    const uint32_t most = WarpMost(x.iterations_max);
    if (join.first) {
      LowerTo(to.iterations_min, fewest);
      RaiseTo(to.iterations_max, most);
    }
    join.Lower(kSomeTested, to.tested_min, x.tested_min);
    join.Raise(kSomeTested, to.tested_max, x.tested_max);
  }
  join.AddAll();
}
__device__ inline void Join(uint32_t& lock, EventColumn& to, const EventTally& x, uint32_t rank) {
  const uint32_t parts = If(x.checks != 0, kSomeChecks) | If(x.count != 0, kSomeHeld) |
                         If(x.changes != 0, kSomeChanges) |
                         If(x.nan_margins != 0, kSomeNanMargins) |
                         If(x.absolute.magnitude != kNoMargin, kSomeMargins) |
                         If((x.checks | x.count | x.changes) >= kLargeCount, kSomeLarge);
  Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Add(kSomeChecks, to.checks, x.checks);
  join.Add(kSomeHeld, to.count, x.count);
  join.Add(kSomeChanges, to.changes, x.changes);
  join.Add(kSomeNanMargins, to.nan_margins, x.nan_margins);
  join.AddAll();
  join.Nearest(lock, to.absolute, x.absolute, rank);
  join.Nearest(lock, to.ulps, x.ulps, rank);
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
  Joiner join{IsFirstOfWarp(), WarpUnion(parts)};
  join.Lower(kFinite, to.min, x.min);
  join.Raise(kFinite, to.max, x.max);
  join.Lower(kSmallest, to.smallest, x.smallest);
  join.Add(kSubnormals, to.subnormals, x.subnormals);
  join.Add(kZeros, to.zeros, x.zeros);
  join.Add(kNans, to.nans, x.nans);
  join.Add(kInf, to.infinities, x.infinities);
  join.AddAll();
}

// Raises the tape units of a step to the most of any instance. Most warps find it there already.
__device__ inline void RaiseTapeUnits(unsigned long long* to, unsigned long long units) {
  const unsigned long long most = WarpMost(units);
  if (IsFirstOfWarp()) RaiseTo(*to, most);
}

// One cotangent that leaves the adjoint of a step; not of whole warps.
__device__ inline void Join(BackwardColumn& to, double cotangent) {
  const double magnitude = precision::Abs(cotangent);
  if (!precision::IsFinite(magnitude)) {
    atomicAdd(&to.nonfinite, 1u);
    return;
  }
  RaiseTo(to.largest, static_cast<unsigned long long>(BitsOf(magnitude)));
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
  uint32_t lock[2];  // of extremes; the second fills up

  __device__ void Clear() {
    OnColumns(termination, termination, kTerminations, ClearWord{});
    OnColumns(event, event, kEvents, ClearWord{});
    OnColumns(state, state, kStates, ClearWord{});
    if (threadIdx.x == 0) lock[0] = 0;
  }
  // Hands the slot over to the block's partial of a column (and of a sample, where >= 0).
  __device__ void Leave(const KernelArgs& args, int64_t column, int64_t sample) {
    const int64_t place = static_cast<int64_t>(blockIdx.x) * args.count + column;
    Leave(args.termination_partial + place * kTerminations, termination, kTerminations);
    Leave(args.event_partial + place * kEvents, event, kEvents);
    if (sample < 0) return;
    const int64_t sampled = static_cast<int64_t>(blockIdx.x) * args.samples + sample;
    Leave(args.state_partial + sampled * kStates, state, kStates);
  }

 private:
  template <class Column>
  __device__ static void Leave(Column* to, Column* from, int count) {
    OnColumns(to, from, count, CopyWord{});
    // The same thread has the same words in both.
    OnColumns(from, from, count, ClearWord{});
  }
};

}  // namespace simgrad::sim::cuda::device
