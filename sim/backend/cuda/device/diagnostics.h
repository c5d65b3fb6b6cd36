// The observations of one thread in one step of its instance; device/join.h joins them with the
// others of its block.
//
// Maths: docs/semantics.md, "Decisions", "Margins" and "Counters".
// Errors: none. Threads: tallies are private; EndRun counts in the block's slot by atomics.
#pragma once

#include "precision/hash.h"
#include "sim/backend/cuda/device/buckets.h"
#include "sim/backend/cuda/device/columns.h"
#include "sim/backend/cuda/device/margin.h"
#include "sim/backend/cuda/device/ranges.h"

namespace simgrad::sim::cuda::device {

// Stop reasons, as StopReason in sim/diagnostics/diagnostics.h.
enum StopReason : int { kConverged, kMaxIter, kNonFinite, kNotEntered, kCounter };

// The smallest |value| that a thread met in a step of an instance, with its MarginMark.
struct NearestValue {
  uint64_t magnitude = kNoMargin;
  uint32_t mark = ~uint32_t{0};
  SIMGRAD_HD void Offer(bool counts, double offered_magnitude, bool negative, uint32_t test = 0) {
    const uint64_t offered = BitsOf(offered_magnitude);
    const uint32_t its_mark = MarginMark(negative, test);
    const bool nearer = offered < magnitude || (offered == magnitude && its_mark < mark);
    if (counts && nearer) {
      magnitude = offered;
      mark = its_mark;
    }
  }
};

// A thread's counts of a step have 32 bits here and in an EventTally: 2^32 tests would take it minutes.
struct TerminationTally {
  uint32_t iterations_sum = 0, checks = 0, near_stopped = 0, near_continued = 0, nan_margins = 0;
  uint32_t reasons[kReasons] = {};
  unsigned long long tested_min = kNoMinimum, tested_max = kNoMaximum;
  NearestValue absolute, ulps;
  uint32_t iterations_min = ~uint32_t{0}, iterations_max = 0;

  SIMGRAD_HD void EndRun(int32_t iterations, int reason, double last_tested) {
    const uint32_t count = static_cast<uint32_t>(iterations);
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

// One run of a loop: what it counts, and how far its last test was from the threshold.
struct RunTally {
  uint32_t checks = 0, nan_margins = 0, near_stopped = 0, near_continued = 0;
  Distance last;

  // `test`: the number of the one that decided.
  SIMGRAD_HD void Test(TerminationTally& loop, const Distance& distance, bool held,
                       double near_band_ulps, uint32_t test) {
    last = distance;
    ++checks;
    nan_margins += distance.number ? 0 : 1;
    loop.absolute.Offer(distance.number, distance.absolute, distance.negative);
    loop.ulps.Offer(distance.number, distance.ulps, distance.negative, test);
    const bool near = distance.number && distance.ulps <= near_band_ulps;
    near_stopped += near && held ? 1 : 0;
    near_continued += near && !held ? 1 : 0;
  }
};

struct EventTally {
  uint32_t checks = 0, count = 0, changes = 0, nan_margins = 0;
  NearestValue absolute, ulps;
  SIMGRAD_HD void Decide(bool guard, const Distance& distance, bool value, bool changed) {
    changes += changed ? 1 : 0;
    count += value ? 1 : 0;
    checks += guard ? 1 : 0;
    nan_margins += guard && !distance.number ? 1 : 0;
    const bool offers = guard && distance.number;
    absolute.Offer(offers, distance.absolute, distance.negative);
    ulps.Offer(offers, distance.ulps, distance.negative);
  }
};

struct StateTally {
  unsigned long long min = kNoMinimum, max = kNoMaximum, smallest = kNoMinimum;
  uint32_t subnormals = 0, zeros = 0, nans = 0, infinities = 0;
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

// Writes the record of a step to its cell, and is ready for the next.
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

// The end of one run of a loop.
__device__ inline void EndRun(TerminationTally& tally, TerminationColumn& slot, const RunTally& run,
                              int32_t iterations, int why, double last_tested) {
  tally.EndRun(iterations, why, last_tested);
  tally.checks += run.checks;
  tally.nan_margins += run.nan_margins;
  tally.near_stopped += run.near_stopped;
  tally.near_continued += run.near_continued;
  atomicAdd(&slot.iterations[IterationBucket(static_cast<uint32_t>(iterations))], 1u);
  if (run.checks > 0 && run.last.number) {
    atomicAdd(&slot.histogram[MarginBucket(run.last.ulps)], 1u);
  }
}

// One element of an event, or of a choice, whose value is a number. `place`: PlaceHash; `last`: its
// last value; `first`: the first step at which it held, or was not 0, or -1.
template <class Value>
SIMGRAD_HD inline void DecideEvent(EventTally& tally, uint64_t place, int64_t t, bool guard,
                                   const Distance& distance, Value value, Value& last,
                                   int64_t& first, uint64_t& signature) {
  const bool changed = value != last;
  last = value;
  if (changed) signature += precision::OutcomeHash(place, static_cast<uint32_t>(value));
  if (value != 0 && first < 0) first = t;
  tally.Decide(guard, distance, value != 0, changed);
}

}  // namespace simgrad::sim::cuda::device
