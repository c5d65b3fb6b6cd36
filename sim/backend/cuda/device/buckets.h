// The buckets of histograms (sim/diagnostics/diagnostics.h), without a table or a loop.
//
// Errors: none. Threads: pure.
#pragma once

#include "precision/format.h"
#include "sim/backend/cuda/kernel_abi.h"

namespace simgrad::sim::cuda::device {

using precision::BitsOf;

// The bucket of |margin| in ulps: diagnostics.h, MarginBucket.
SIMGRAD_HD inline int MarginBucket(double ulps) {
  const uint64_t bits = BitsOf(ulps) & ~(uint64_t{1} << 63);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  const int above = (bits & ((uint64_t{1} << 52) - 1)) != 0 ? 1 : 0;
  const int bucket = exponent + above + 1;
  const int capped = bucket < kMarginBucketCount - 1 ? bucket : kMarginBucketCount - 1;
  const int beyond_one = bits <= BitsOf(1.0) ? 1 : capped;
  return bits == 0 ? 0 : beyond_one;
}

// The bucket of a number of at least zero: diagnostics.h, ExponentBucket.
SIMGRAD_HD inline int ExponentBucket(double magnitude) {
  if (magnitude == 0.0) return 0;
  const int exponent = static_cast<int>(BitsOf(magnitude) >> 52) - 1023;
  const int bucket = (exponent + 136 + 136 * 8) / 8 - 136;
  return bucket < 1 ? 1 : (bucket < kExponentBucketCount ? bucket : kExponentBucketCount - 1);
}

// The exponents of f32 lie within the buckets, and those of its subnormal numbers in the first.
SIMGRAD_HD inline int ExponentBucket(float magnitude) {
  const int bucket = (static_cast<int>(BitsOf(magnitude) >> 23) + 136 - 127) / 8;
  return magnitude == 0.0f ? 0 : bucket;
}

// As sim::IterationBucket: above 4 two bounds to a power of two (6, 8, 12, 16, ...), above 64 one.
SIMGRAD_HD inline int IterationBucket(uint32_t iterations) {
  if (iterations <= 4) return static_cast<int>(iterations);
  // The exponent and the first bit behind the point, of a float that is exact where they matter.
  const int field = static_cast<int>(BitsOf(static_cast<float>(iterations - 1)) >> 22);
  constexpr int kOfOne = 2 * 127;
  if (iterations <= 64) return field - kOfOne + 1;
  const int bucket = (field - kOfOne) / 2 + 7;
  return bucket < kIterationBucketCount - 1 ? bucket : kIterationBucketCount - 1;
}

}  // namespace simgrad::sim::cuda::device
