// The record of one step over all instances, as columns that threads and machine code fill.
//
// Compiles under NVRTC, nvcc and the host compiler. step_columns.h turns them into the data of
// sim/diagnostics.
// Maths: sums of integers, and extremes of keys that sort like the doubles they stand for, so that
//   columns merge to the same bits in any order.
// Threads: data.
#pragma once

#include "precision/host_device.h"

namespace simgrad::sim {

inline constexpr int kMarginBucketCount = 64;     // diagnostics.h: kMarginBuckets
inline constexpr int kIterationBucketCount = 16;  // diagnostics.h: kIterationBuckets
inline constexpr int kExponentBucketCount = 34;   // diagnostics.h: kExponentBuckets
inline constexpr int kRoles = 10;                 // precision::kRoleCount
inline constexpr int kReasons = 5;                // kStopReasonCount

// An extreme with the smallest instance that attains it, and the number of the test. Keys of one
// magnitude are ordered by rank (the place of the instance id in ascending order), then by whether
// the signed value is not negative, then by test: ties as in SmallestMargin.
inline constexpr int kTestBits = 24;
// Orders the tests of one instance.
SIMGRAD_HD constexpr uint32_t MarginMark(bool negative, uint32_t test) {
  return (uint32_t{negative ? 0u : 1u} << kTestBits) | test;
}
SIMGRAD_HD constexpr uint64_t MarginKey(uint32_t rank, uint32_t mark) {
  return (uint64_t{rank} << (kTestBits + 1)) | mark;
}
SIMGRAD_HD constexpr uint64_t MarginKey(uint32_t rank, bool negative, uint32_t test) {
  return MarginKey(rank, MarginMark(negative, test));
}
struct ExtremeMargin {
  uint64_t magnitude;  // bits of the |value| in f64; all ones: there was none
  uint64_t key;        // all ones: none yet
};

// Doubles as integers that sort like them: see OrderedKey in device/columns.h.
struct TerminationColumn {
  unsigned long long runs, iterations_sum, checks, near_stopped, near_continued, nan_margins;
  unsigned long long reasons[kReasons];
  unsigned long long tested_min, tested_max;  // ordered keys; start: of +inf, of -inf
  ExtremeMargin absolute, ulps;
  uint32_t iterations_min, iterations_max;
  uint32_t histogram[kMarginBucketCount];
  uint32_t iterations[kIterationBucketCount];  // of the runs
};

struct EventColumn {
  unsigned long long checks, count, changes, nan_margins;
  ExtremeMargin absolute, ulps;
};

// |margin| in ulps of one event at a sampled step.
struct MarginColumn {
  uint32_t histogram[kMarginBucketCount];
};

struct StateColumn {
  unsigned long long min, max, smallest;  // ordered keys
  unsigned long long subnormals, zeros, nans, infinities;
};

struct BackwardColumn {
  unsigned long long largest;  // bits of a finite magnitude
  uint32_t nonfinite;          // a request holds no 2^32 cotangents of a step
  uint32_t exponents[kExponentBucketCount];
};

// AdditionCounts of one site.
struct AdditionColumn {
  unsigned long long additions, absorbed;
};

struct RangeColumn {
  unsigned long long underflows[kRoles], overflows[kRoles];
  unsigned long long health_changes;  // of instances, in a counted forward run
};

}  // namespace simgrad::sim
