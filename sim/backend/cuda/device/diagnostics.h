// What one thread saw in one step; device/join.h joins it with the others of its block.
//
// Maths: the paragraphs "Decisions", "Margins" and "Counters" of sim/backend/semantics.h.
// Errors: none. Threads: tallies are private; EndRun counts in the block's slot by atomics.
#pragma once

#include "precision/hash.h"
#include "sim/backend/cuda/device/columns.h"
#include "sim/backend/cuda/device/margin.h"
#include "sim/backend/cuda/device/ranges.h"

namespace simgrad::sim::cuda::device {

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
    const bool near =
        precision::DoubleOf(BitsOf(test.margin.ulps) & ~(uint64_t{1} << 63)) <= near_band_ulps;
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

}  // namespace simgrad::sim::cuda::device
