#include "sim/backend/compiled/group/cotangent_record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <type_traits>

#include "precision/rounding.h"
#include "precision/selection.h"
#include "precision/wide.h"
#include "sim/backend/cuda/device/buckets.h"

namespace simgrad::sim::compiled {
namespace {

using precision::Format;

// Elements that are counted at a time: their buckets stay in the nearest cache.
constexpr int64_t kTile = 1024;

template <typename T>
using BitsOf = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;

// A tile's part of the column; integers of one width, so that its loop is one of vectors.
template <typename Bits>
struct Tile {
  Bits largest = 0;
  Bits nonfinite = 0;
  Bits underflows = 0;
  Bits first = kExponentBucketCount;  // of the buckets that occur
  Bits last = -1;
};

// Bucket numbers of a tile; of elements that are absent or not finite, -1. As ExponentBucket.
template <typename T>
[[gnu::always_inline]] inline Tile<BitsOf<T>> BucketsOf(const T* values, const uint32_t* present,
                                                        int64_t count, T smallest_normal,
                                                        BitsOf<T>* buckets) {
  using Bits = BitsOf<T>;
  constexpr bool is_f64 = std::is_same_v<T, double>;
  constexpr int kMantissa = is_f64 ? 52 : 23;
  constexpr Bits kBias = is_f64 ? 1023 : 127;
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  const Bits normal = std::bit_cast<Bits>(smallest_normal);
  Tile<Bits> tile;
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = std::bit_cast<Bits>(values[i]) & kMagnitude;
    const bool is_present = present == nullptr || present[i] != 0;
    const bool counts = is_present & (bits < kInfinity);
    // The exponents of f64 reach beyond the buckets on both sides.
    const Bits eighth = ((bits >> kMantissa) - kBias + 136) >> 3;
    const Bits within = std::min<Bits>(std::max<Bits>(eighth, 1), kExponentBucketCount - 1);
    const Bits bucket = counts ? (bits == 0 ? 0 : within) : -1;
    buckets[i] = bucket;
    tile.largest = std::max(tile.largest, counts ? bits : 0);
    tile.nonfinite += is_present & (bits >= kInfinity);
    tile.underflows += is_present & (bits != 0) & (bits < normal);
    tile.first = std::min<Bits>(tile.first, counts ? bucket : kExponentBucketCount);
    tile.last = std::max(tile.last, bucket);
  }
  return tile;
}

SIMGRAD_WIDE Tile<int32_t> Buckets(const float* values, const uint32_t* present, int64_t count,
                                   float smallest_normal, int32_t* buckets) {
  return present == nullptr ? BucketsOf(values, nullptr, count, smallest_normal, buckets)
                            : BucketsOf(values, present, count, smallest_normal, buckets);
}
SIMGRAD_WIDE Tile<int64_t> Buckets(const double* values, const uint32_t* present, int64_t count,
                                   double smallest_normal, int64_t* buckets) {
  return present == nullptr ? BucketsOf(values, nullptr, count, smallest_normal, buckets)
                            : BucketsOf(values, present, count, smallest_normal, buckets);
}

SIMGRAD_WIDE int32_t CountOf(const int32_t* buckets, int64_t count, int32_t bucket) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += buckets[i] == bucket ? 1 : 0;
  return found;
}
SIMGRAD_WIDE int64_t CountOf(const int64_t* buckets, int64_t count, int64_t bucket) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += buckets[i] == bucket ? 1 : 0;
  return found;
}

template <typename T>
void Take(BackwardColumn& column, unsigned long long& underflows, const T* values,
          const uint32_t* present, int64_t count, T smallest_normal) {
  std::array<BitsOf<T>, kTile> buckets;
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t n = std::min(kTile, count - begin);
    const Tile<BitsOf<T>> tile =
        Buckets(values + begin, present == nullptr ? nullptr : present + begin, n, smallest_normal,
                buckets.data());
    const auto largest = static_cast<double>(std::bit_cast<T>(tile.largest));
    column.largest = std::max<unsigned long long>(column.largest, std::bit_cast<uint64_t>(largest));
    column.nonfinite += static_cast<uint32_t>(tile.nonfinite);
    underflows += static_cast<unsigned long long>(tile.underflows);
    for (BitsOf<T> bucket = tile.first; bucket <= tile.last; ++bucket) {
      column.exponents[bucket] += static_cast<uint32_t>(CountOf(buckets.data(), n, bucket));
    }
  }
}

}  // namespace

void TakeCotangents(BackwardColumn* column, unsigned long long* underflows, const void* values,
                    const uint32_t* present, int64_t count, int32_t format) {
  const double smallest_normal =
      precision::DoublePowerOfTwo(precision::Traits(static_cast<Format>(format)).min_exponent);
  if (static_cast<Format>(format) == Format::kF64) {
    Take(*column, *underflows, static_cast<const double*>(values), present, count, smallest_normal);
  } else {
    Take(*column, *underflows, static_cast<const float*>(values), present, count,
         static_cast<float>(smallest_normal));
  }
}

}  // namespace simgrad::sim::compiled
