#include "sim/backend/compiled/run/state_sample.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "precision/selection.h"
#include "precision/wide.h"

namespace simgrad::sim::compiled {
namespace {

// Values that are counted at a time: 32 bits hold their counts.
constexpr int64_t kTile = int64_t{1} << 30;

// Integers of one width, so that the loop is one of vectors.
template <typename Bits>
struct Tile {
  Bits least = std::numeric_limits<Bits>::max();  // keys, of the finite values
  Bits most = std::numeric_limits<Bits>::min();
  Bits smallest = std::numeric_limits<Bits>::max();  // magnitude, of the finite ones that are not 0
  Bits subnormals = 0;
  Bits zeros = 0;
  Bits infinities = 0;
  Bits nans = 0;
};

// A number's bits, sorted as numbers are, -0 before +0; its own inverse.
template <typename Bits>
constexpr Bits KeyOf(Bits bits) {
  return bits ^ ((bits >> (8 * sizeof(Bits) - 1)) & std::numeric_limits<Bits>::max());
}

template <typename T, typename Bits>
[[gnu::always_inline]] inline Tile<Bits> TileOf(const T* values, int64_t count, T smallest_normal) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  const Bits normal = std::bit_cast<Bits>(smallest_normal);
  Tile<Bits> tile;
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = std::bit_cast<Bits>(values[i]);
    const Bits magnitude = bits & kMagnitude;
    const Bits key = KeyOf(bits);
    const bool is_finite = magnitude < kInfinity;
    tile.least = std::min(tile.least, is_finite ? key : std::numeric_limits<Bits>::max());
    tile.most = std::max(tile.most, is_finite ? key : std::numeric_limits<Bits>::min());
    tile.smallest =
        std::min(tile.smallest, (is_finite & (magnitude != 0)) ? magnitude : kMagnitude);
    tile.subnormals += ((magnitude != 0) & (magnitude < normal)) ? 1 : 0;
    tile.zeros += magnitude == 0 ? 1 : 0;
    tile.infinities += magnitude == kInfinity ? 1 : 0;
    tile.nans += magnitude > kInfinity ? 1 : 0;
  }
  return tile;
}

SIMGRAD_WIDE Tile<int32_t> Values(const float* values, int64_t count, float smallest_normal) {
  return TileOf<float, int32_t>(values, count, smallest_normal);
}
SIMGRAD_WIDE Tile<int64_t> Values(const double* values, int64_t count, double smallest_normal) {
  return TileOf<double, int64_t>(values, count, smallest_normal);
}

template <typename T>
void NoteEach(const T* values, int64_t count, T smallest_normal, StateRange& range) {
  using Bits = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const Tile<Bits> tile = Values(values + begin, std::min(kTile, count - begin), smallest_normal);
    const auto number = [](Bits key) { return static_cast<double>(std::bit_cast<T>(KeyOf(key))); };
    if (tile.least <= tile.most) {
      range.min = precision::Min(range.min, number(tile.least));
      range.max = precision::Max(range.max, number(tile.most));
    }
    if (tile.smallest < std::numeric_limits<Bits>::max()) {
      range.smallest = precision::Min(range.smallest, number(tile.smallest));
    }
    range.subnormals += static_cast<uint64_t>(tile.subnormals);
    range.zeros += static_cast<uint64_t>(tile.zeros);
    range.infinities += static_cast<uint64_t>(tile.infinities);
    range.nans += static_cast<uint64_t>(tile.nans);
  }
}

}  // namespace

void NoteStates(const std::byte* values, plan::Carrier carrier, int64_t count,
                double smallest_normal, StateRange& range) {
  if (carrier == plan::Carrier::kF64) {
    NoteEach(reinterpret_cast<const double*>(values), count, smallest_normal, range);
  } else {
    NoteEach(reinterpret_cast<const float*>(values), count, static_cast<float>(smallest_normal),
             range);
  }
}

}  // namespace simgrad::sim::compiled
