// What one thread saw in one step, and how the threads of a block join it, deterministically.
//
// Maths: the paragraphs "Decisions", "Margins" and "Counters" of sim/backend/semantics.h.
// How: a thread gathers in private tallies. At the end of a step they are joined into the block's
//   slot of that step (two slots take turns): sums and smallest magnitudes by integer atomics,
//   then, behind a barrier, the smallest key among those that attain the magnitude; behind another,
//   the slot becomes the block's partial column and is cleared for the step after next.
// Errors: none. Threads: of one block, all at the same step.
#pragma once

#include "precision/hash.h"
#include "precision/ulp.h"
#include "sim/backend/cuda/device/columns.h"
#include "sim/backend/cuda/device/ranges.h"

namespace simgrad::sim::cuda::device {

using precision::Margin;

// Stop reasons, as StopReason in sim/diagnostics/diagnostics.h.
enum StopReason : int { kConverged, kMaxIter, kNonFinite, kNotEntered };

// A test of a loop that was evaluated.
struct Tested {
  double value;
  Margin margin;
  bool held;
};

SIMGRAD_HD inline bool IsNan(const Margin& margin) {
  return margin.absolute != margin.absolute || margin.ulps != margin.ulps;
}

// The bucket of |margin| in ulps: diagnostics.h, MarginBucket.
SIMGRAD_HD inline int MarginBucket(double ulps) {
  const uint64_t bits = BitsOf(ulps) & ~(uint64_t{1} << 63);
  if (bits == 0) return 0;
  if (bits <= BitsOf(1.0)) return 1;
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  const int above = (bits & ((uint64_t{1} << 52) - 1)) != 0 ? 1 : 0;
  const int bucket = exponent + above + 1;
  return bucket < kMarginBucketCount - 1 ? bucket : kMarginBucketCount - 1;
}

SIMGRAD_HD inline int ExponentBucket(double magnitude) {
  if (magnitude == 0.0) return 0;
  const int exponent = static_cast<int>(BitsOf(magnitude) >> 52) - 1023;
  const int bucket = (exponent + 136 + 136 * 8) / 8 - 136;
  return bucket < 1 ? 1 : (bucket < kExponentBucketCount ? bucket : kExponentBucketCount - 1);
}

// The smallest |value| that one instance met; of equal ones the negative.
struct NearestValue {
  uint64_t magnitude = kNoMargin;
  uint32_t not_negative = 1;
  SIMGRAD_HD void Offer(double x) {
    const uint64_t bits = BitsOf(x);
    const uint64_t offered = bits & ~(uint64_t{1} << 63);
    const uint32_t sign = (bits >> 63) != 0 ? 0 : 1;
    if (offered < magnitude || (offered == magnitude && sign < not_negative)) {
      magnitude = offered;
      not_negative = sign;
    }
  }
};

struct TerminationTally {
  unsigned long long runs = 0, iterations_sum = 0, checks = 0, near_stopped = 0, near_continued = 0,
                     nan_margins = 0;
  unsigned long long reasons[kReasons] = {0, 0, 0, 0};
  unsigned long long tested_min = kNoMinimum, tested_max = kNoMaximum;
  NearestValue absolute, ulps;
  uint32_t iterations_min = ~uint32_t{0}, iterations_max = 0;

  SIMGRAD_HD void Test(const Tested& test, double near_band_ulps) {
    ++checks;
    if (IsNan(test.margin)) {
      ++nan_margins;
      return;
    }
    absolute.Offer(test.margin.absolute);
    ulps.Offer(test.margin.ulps);
    const bool near = precision::Abs(test.margin.ulps) <= near_band_ulps;
    near_stopped += near && test.held ? 1 : 0;
    near_continued += near && !test.held ? 1 : 0;
  }
  SIMGRAD_HD void EndRun(int32_t iterations, int reason, double last_tested) {
    const uint32_t count = static_cast<uint32_t>(iterations);
    ++runs;
    iterations_sum += count;
    iterations_min = count < iterations_min ? count : iterations_min;
    iterations_max = count > iterations_max ? count : iterations_max;
    for (int k = 0; k < kReasons; ++k) reasons[k] += k == reason ? 1 : 0;
    if (last_tested != last_tested) return;
    const unsigned long long key = OrderedKey(last_tested);
    tested_min = key < tested_min ? key : tested_min;
    tested_max = key > tested_max ? key : tested_max;
  }
};

struct EventTally {
  unsigned long long checks = 0, count = 0, changes = 0, nan_margins = 0;
  NearestValue absolute, ulps;
  SIMGRAD_HD void Decide(bool guard, const Margin& margin, bool value, bool changed) {
    changes += changed ? 1 : 0;
    count += value ? 1 : 0;
    if (!guard) return;
    ++checks;
    if (IsNan(margin)) {
      ++nan_margins;
      return;
    }
    absolute.Offer(margin.absolute);
    ulps.Offer(margin.ulps);
  }
};

struct StateTally {
  unsigned long long min = kNoMinimum, max = kNoMaximum, smallest = kNoMinimum;
  unsigned long long subnormals = 0, zeros = 0, nans = 0, infinities = 0;
  template <precision::Format F>
  SIMGRAD_HD void See(typename precision::Lane<F>::Carrier x) {
    if (x != x) {
      ++nans;
      return;
    }
    if (!precision::IsFinite(x)) {
      ++infinities;
      return;
    }
    const unsigned long long key = OrderedKey(static_cast<double>(x));
    min = key < min ? key : min;
    max = key > max ? key : max;
    if (x == 0) {
      ++zeros;
      return;
    }
    const unsigned long long size = OrderedKey(static_cast<double>(precision::Abs(x)));
    smallest = size < smallest ? size : smallest;
    subnormals += IsTiny<F>(static_cast<double>(x)) ? 1 : 0;
  }
};

// ---- the join: atomics on integers, so the order of the threads does not matter ----

__device__ inline unsigned long long* Words(uint64_t* x) {
  return reinterpret_cast<unsigned long long*>(x);
}
__device__ inline void JoinSum(unsigned long long& to, unsigned long long x) {
  if (x != 0) atomicAdd(&to, x);
}
__device__ inline void JoinLeast(unsigned long long& to, unsigned long long x) {
  if (x != kNoMinimum) atomicMin(&to, x);
}
__device__ inline void JoinNearest(ExtremeMargin& to, const NearestValue& x) {
  if (x.magnitude != kNoMargin) {
    atomicMin(Words(&to.magnitude), static_cast<unsigned long long>(x.magnitude));
  }
}
// Behind a barrier after JoinNearest of all.
__device__ inline void JoinKey(ExtremeMargin& to, const NearestValue& x, uint32_t rank) {
  if (x.magnitude == kNoMargin || x.magnitude != to.magnitude) return;
  atomicMin(Words(&to.key), 2ull * rank + x.not_negative);
}

__device__ inline void Join(TerminationColumn& to, const TerminationTally& x) {
  JoinSum(to.checks, x.checks);
  JoinNearest(to.absolute, x.absolute);
  JoinNearest(to.ulps, x.ulps);
  JoinSum(to.near_stopped, x.near_stopped);
  JoinSum(to.near_continued, x.near_continued);
  JoinSum(to.nan_margins, x.nan_margins);
  if (x.runs == 0) return;
  JoinSum(to.runs, x.runs);
  JoinSum(to.iterations_sum, x.iterations_sum);
  for (int k = 0; k < kReasons; ++k) JoinSum(to.reasons[k], x.reasons[k]);
  JoinLeast(to.tested_min, x.tested_min);
  if (x.tested_max != kNoMaximum) atomicMax(&to.tested_max, x.tested_max);
  atomicMin(&to.iterations_min, x.iterations_min);
  atomicMax(&to.iterations_max, x.iterations_max);
}
__device__ inline void Join(EventColumn& to, const EventTally& x) {
  JoinSum(to.checks, x.checks);
  JoinSum(to.count, x.count);
  JoinSum(to.changes, x.changes);
  JoinSum(to.nan_margins, x.nan_margins);
  JoinNearest(to.absolute, x.absolute);
  JoinNearest(to.ulps, x.ulps);
}
__device__ inline void Join(StateColumn& to, const StateTally& x) {
  JoinLeast(to.min, x.min);
  if (x.max != kNoMaximum) atomicMax(&to.max, x.max);
  JoinLeast(to.smallest, x.smallest);
  JoinSum(to.subnormals, x.subnormals);
  JoinSum(to.zeros, x.zeros);
  JoinSum(to.nans, x.nans);
  JoinSum(to.infinities, x.infinities);
}
template <class Column, class Tally>
__device__ inline void JoinKeys(Column& to, const Tally& x, uint32_t rank) {
  JoinKey(to.absolute, x.absolute, rank);
  JoinKey(to.ulps, x.ulps, rank);
}

// One cotangent that leaves the adjoint of a step.
__device__ inline void Join(BackwardColumn& to, double cotangent) {
  const double magnitude = precision::Abs(cotangent);
  if (!precision::IsFinite(magnitude)) {
    atomicAdd(&to.nonfinite, 1ull);
    return;
  }
  atomicMax(&to.largest, static_cast<unsigned long long>(BitsOf(magnitude)));
  atomicAdd(&to.exponents[ExponentBucket(magnitude)], 1ull);
}

__device__ inline void Join(RangeColumn& to, int role, const RangeTally& x) {
  JoinSum(to.underflows[role], x.underflows);
  JoinSum(to.overflows[role], x.overflows);
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

// Level `instances` of one site for one instance and step.
struct InstanceTally {
  uint32_t iterations = 0;
  uint32_t count = 0;
  uint32_t reason = 0;
  int64_t cursor = 0;  // second pass: where the next tested value goes
  SIMGRAD_HD void EndRun(int32_t run_iterations, int why) {
    iterations += static_cast<uint32_t>(run_iterations);
    reason = static_cast<uint32_t>(why);
  }
};

SIMGRAD_HD inline void TellTested(const KernelArgs& args, int site, InstanceTally& ran,
                                  double value) {
  ++ran.count;
  if ((args.flags & kValuesPass) != 0) args.instance_site[site].values[ran.cursor++] = value;
}

// What a step left, to its cell; ready for the next.
SIMGRAD_HD inline void TellStep(const KernelArgs& args, int site, int64_t column, int64_t instance,
                                InstanceTally& ran) {
  if ((args.flags & kRecordInstances) != 0) {
    const InstanceSiteView& view = args.instance_site[site];
    const int64_t cell = column * args.instances + instance;
    view.iterations[cell] = ran.iterations;
    view.reasons[cell] = static_cast<uint8_t>(ran.reason);
    view.value_counts[cell] = ran.count;
  }
  ran.iterations = ran.count = ran.reason = 0;
}

SIMGRAD_HD inline void StartTelling(const KernelArgs& args, int site, int64_t instance,
                                    InstanceTally& ran) {
  const bool values = (args.flags & kValuesPass) != 0;
  ran = {0, 0, 0, values ? args.instance_site[site].value_starts[instance] : 0};
}

// As sim::IterationBucket.
SIMGRAD_HD inline int IterationBucket(uint32_t iterations) {
  int bucket = 0;
  while (bucket < kIterationBucketCount - 1 && iterations > kIterationBoundsOnDevice[bucket]) {
    ++bucket;
  }
  return bucket;
}

// The end of one run of a loop; `tested`: it was entered, and its last test has this margin.
__device__ inline void EndRun(TerminationTally& tally, TerminationColumn& slot, int32_t iterations,
                              int why, double last, bool tested, const Margin& margin) {
  tally.EndRun(iterations, why, last);
  atomicAdd(&slot.iterations[IterationBucket(static_cast<uint32_t>(iterations))], 1u);
  if (tested && !IsNan(margin)) {
    atomicAdd(&slot.histogram[MarginBucket(precision::Abs(margin.ulps))], 1u);
  }
}

// One element of an event. `last`: its last value; `first`: the first step at which it held, or -1.
SIMGRAD_HD inline void DecideEvent(EventTally& tally, uint64_t site, int64_t t, int64_t iteration,
                                   int64_t element, bool guard, const Margin& margin, bool value,
                                   bool& last, int64_t& first, uint64_t& signature) {
  const bool changed = value != last;
  last = value;
  if (changed) {
    signature +=
        precision::DecisionHash(site, static_cast<uint64_t>(t), static_cast<uint64_t>(iteration),
                                static_cast<uint64_t>(element), value ? 1 : 0);
  }
  if (value && first < 0) first = t;
  tally.Decide(guard, margin, value, changed);
}

// How a run of a loop ended, as a term of the path signature.
SIMGRAD_HD inline uint64_t LoopHash(uint64_t site, int64_t t, int64_t iteration, int64_t element,
                                    int32_t iterations, int why) {
  return precision::DecisionHash(
      site, static_cast<uint64_t>(t), static_cast<uint64_t>(iteration),
      static_cast<uint64_t>(element),
      precision::LoopOutcome(static_cast<uint64_t>(iterations), static_cast<uint64_t>(why)));
}

SIMGRAD_HD inline Margin IntegerMargin(int64_t a, int64_t b) {
  const double distance = static_cast<double>(a) - static_cast<double>(b);
  return {distance, distance};
}

// The margin of a comparison of reals in format F.
template <precision::Format F>
SIMGRAD_HD inline Margin MarginOf(double a, double b, double extra_magnitude) {
  return precision::MarginOf(F, a, b, extra_magnitude);
}

}  // namespace simgrad::sim::cuda::device
