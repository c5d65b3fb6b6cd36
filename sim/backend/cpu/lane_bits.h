// Sets of lanes of a block as bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace simgrad::sim::cpu {

inline constexpr int64_t kMaxBlockWidth = 512;

// A set of positions below kMaxBlockWidth. Words beyond the width of a block are zero.
struct LaneBits {
  static constexpr int kWords = kMaxBlockWidth / 64;
  uint64_t word[kWords] = {};

  static LaneBits First(int64_t n) {
    LaneBits bits;
    for (int w = 0; n > 0; ++w, n -= 64) {
      bits.word[w] = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    }
    return bits;
  }
  bool Has(int64_t lane) const { return ((word[lane / 64] >> (lane % 64)) & 1) != 0; }
  void Add(int64_t lane) { word[lane / 64] |= uint64_t{1} << (lane % 64); }
  bool Any() const {
    uint64_t any = 0;
    for (uint64_t w : word) any |= w;
    return any != 0;
  }
  int64_t Count() const {
    // In the words' bytes side by side: std::popcount is a library call on the oldest processors.
    uint64_t bytes = 0;
    static_assert(kWords * 8 < 256);
    for (uint64_t w : word) {
      w = w - ((w >> 1) & 0x5555555555555555u);
      w = (w & 0x3333333333333333u) + ((w >> 2) & 0x3333333333333333u);
      bytes += (w + (w >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    }
    bytes = (bytes & 0x00FF00FF00FF00FFu) + ((bytes >> 8) & 0x00FF00FF00FF00FFu);
    return static_cast<int64_t>((bytes * 0x0001000100010001u) >> 48);
  }
  // The smallest lane; the set is not empty.
  int64_t Lowest() const {
    int w = 0;
    while (word[w] == 0) ++w;
    return 64 * w + std::countr_zero(word[w]);
  }
  int64_t Highest() const {
    int w = kWords - 1;
    while (word[w] == 0) --w;
    return 64 * w + 63 - std::countl_zero(word[w]);
  }
  bool operator==(const LaneBits&) const = default;
};

inline LaneBits operator&(LaneBits a, const LaneBits& b) {
  for (int w = 0; w < LaneBits::kWords; ++w) a.word[w] &= b.word[w];
  return a;
}
inline LaneBits operator|(LaneBits a, const LaneBits& b) {
  for (int w = 0; w < LaneBits::kWords; ++w) a.word[w] |= b.word[w];
  return a;
}
// a without b.
inline LaneBits operator-(LaneBits a, const LaneBits& b) {
  for (int w = 0; w < LaneBits::kWords; ++w) a.word[w] &= ~b.word[w];
  return a;
}

// How the lanes of `part` lie in `whole`, of which they are a part.
enum class Share : uint8_t { kNone, kSome, kAll };
inline Share ShareOf(const LaneBits& part, const LaneBits& whole, int64_t width) {
  uint64_t any = 0;
  uint64_t rest = 0;
  for (int64_t w = 0; w < (width + 63) / 64; ++w) {
    any |= part.word[w] & whole.word[w];
    rest |= whole.word[w] & ~part.word[w];
  }
  return any == 0 ? Share::kNone : rest == 0 ? Share::kAll : Share::kSome;
}

// Calls f(lane) for every lane, ascending.
template <class F>
void ForEachLane(const LaneBits& bits, const F& f) {
  for (int w = 0; w < LaneBits::kWords; ++w) {
    for (uint64_t rest = bits.word[w]; rest != 0; rest &= rest - 1) {
      f(int64_t{64} * w + std::countr_zero(rest));
    }
  }
}

// to[position[j]] = from[j] for the lanes j; values of 4 or 8 bytes.
inline void ScatterRow(std::byte* to, const std::byte* from, int64_t bytes, const int32_t* position,
                       const LaneBits& lanes) {
  const auto scatter = [&]<class T>(T* target, const T* source) {
    ForEachLane(lanes, [&](int64_t j) { target[position[j]] = source[j]; });
  };
  if (bytes == 8) {
    scatter(reinterpret_cast<uint64_t*>(to), reinterpret_cast<const uint64_t*>(from));
  } else {
    scatter(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from));
  }
}

}  // namespace simgrad::sim::cpu
