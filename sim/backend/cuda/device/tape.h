// The arena in which a replayed step leaves what its adjoint reads.
//
// Layout: units of one width; unit p of lane j lies at p * lanes + j (thread per instance: the
//   threads of a warp are neighbours), or at p (block per instance: one lane). Values wider than a
//   unit take several. Where a value was rounded to a narrower format, the code that is stored also
//   says whether that under- or overflowed: zeros, infinities and largest numbers that arose so
//   have codes of their own among the NaNs. 8-bit formats are stored in the codes of f16, which
//   holds all of them.
// Errors: none; the host has counted what is needed. Threads: a lane is one thread's (thread per
//   instance) or one block's.
#pragma once

#include "sim/backend/cuda/device/ranges.h"

namespace simgrad::sim::cuda::device {

// How a rounded value came about, where its bits alone do not say.
enum class TapeNote : uint32_t {
  kNan,
  kZero,
  kMinusZero,
  kInfinity,
  kMinusInfinity,
  kLargest,
  kMinusLargest,
  kNanByOverflow,
  kCount
};

template <class T>
struct Taped {
  T value;
  bool underflow = false;
  bool overflow = false;
};

template <Format F>
SIMGRAD_HD inline typename Lane<F>::Carrier ValueOf(TapeNote note) {
  using T = typename Lane<F>::Carrier;
  constexpr T kLargest = static_cast<T>(precision::Traits(F).max_finite);
  const T infinity = static_cast<T>(precision::DoubleOf(precision::kDoubleInfinityBits));
  switch (note) {
    case TapeNote::kZero:
      return T{0};
    case TapeNote::kMinusZero:
      return -T{0};
    case TapeNote::kInfinity:
      return infinity;
    case TapeNote::kMinusInfinity:
      return -infinity;
    case TapeNote::kLargest:
      return kLargest;
    case TapeNote::kMinusLargest:
      return -kLargest;
    default:
      return static_cast<T>(precision::DoubleOf(precision::kDoubleNanBits));
  }
}

// The note of a NaN code's payload, and back.
SIMGRAD_HD inline TapeNote NoteOf(uint32_t payload) {
  return payload - 1 < static_cast<uint32_t>(TapeNote::kCount) ? static_cast<TapeNote>(payload - 1)
                                                               : TapeNote::kNan;
}

// Whether x -> r needs a note; kCount: none.
template <Format F, class From>
SIMGRAD_HD inline TapeNote Describe(From x, typename Lane<F>::Carrier r) {
  if (r != r) {
    return precision::IsFinite(x) ? TapeNote::kNanByOverflow : TapeNote::kNan;
  }
  const bool negative = x < 0;
  if (r == 0 && x != 0) return negative ? TapeNote::kMinusZero : TapeNote::kZero;
  if (!precision::IsFinite(x) || precision::IsFinite(Lane<F>::Round(x))) return TapeNote::kCount;
  if (precision::IsFinite(r)) return negative ? TapeNote::kMinusLargest : TapeNote::kLargest;
  return negative ? TapeNote::kMinusInfinity : TapeNote::kInfinity;
}

// Codes of values of a format; the infinity's code plus 1 + note is a NaN code.
template <Format F>
struct TapeCode {  // 16 bits and less
  using Bits = uint16_t;
  static constexpr bool kWide = F == Format::kBf16;
  static constexpr uint32_t kInfinity = kWide ? 0x7F80u : 0x7C00u;
  SIMGRAD_HD static Bits Encode(float r) {
    const uint32_t bits = precision::BitsOf(r);
    const uint32_t sign = bits >> 31 << 15;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (kWide) return static_cast<Bits>(bits >> 16);
    if (magnitude >= precision::kFloatInfinityBits) return static_cast<Bits>(sign | kInfinity);
    if (magnitude >= precision::BitsOf(0x1p-14f)) {
      return static_cast<Bits>(sign | ((magnitude - (112u << 23)) >> 13));
    }
    const float scaled = precision::FloatOf(magnitude) * 0x1p24f;
    return static_cast<Bits>(sign | static_cast<uint32_t>(scaled));
  }
  SIMGRAD_HD static float Decode(Bits code) {
    if (kWide) return precision::FloatOf(static_cast<uint32_t>(code) << 16);
    const uint32_t sign = static_cast<uint32_t>(code >> 15) << 31;
    const uint32_t magnitude = code & 0x7FFFu;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= kInfinity) bits = precision::kFloatInfinityBits;
    if (magnitude < 0x400u) bits = precision::BitsOf(static_cast<float>(magnitude) * 0x1p-24f);
    return precision::FloatOf(sign | bits);
  }
};
template <>
struct TapeCode<Format::kF32> {
  using Bits = uint32_t;
  static constexpr uint32_t kInfinity = precision::kFloatInfinityBits;
  SIMGRAD_HD static Bits Encode(float r) { return precision::BitsOf(r); }
  SIMGRAD_HD static float Decode(Bits code) { return precision::FloatOf(code); }
};
template <>
struct TapeCode<Format::kF64> {
  using Bits = uint64_t;
  static constexpr uint64_t kInfinity = precision::kDoubleInfinityBits;
  SIMGRAD_HD static Bits Encode(double r) { return precision::BitsOf(r); }
  SIMGRAD_HD static double Decode(Bits code) { return precision::DoubleOf(code); }
};

// x rounded to F, as the tape keeps it.
template <Format F, class From>
SIMGRAD_HD inline typename TapeCode<F>::Bits Note(From x, precision::Overflow overflow) {
  using Code = TapeCode<F>;
  const typename Lane<F>::Carrier r = Lane<F>::Round(x, overflow);
  const TapeNote note = Describe<F>(x, r);
  if (note == TapeNote::kCount) return Code::Encode(r);
  return static_cast<typename Code::Bits>(Code::kInfinity + 1 + static_cast<uint32_t>(note));
}

template <Format F>
SIMGRAD_HD inline Taped<typename Lane<F>::Carrier> FromNote(typename TapeCode<F>::Bits code) {
  using Code = TapeCode<F>;
  // Notes stand just above the code of +Inf.
  if (code > Code::kInfinity && code <= Code::kInfinity + static_cast<uint32_t>(TapeNote::kCount)) {
    const TapeNote note = NoteOf(static_cast<uint32_t>(code - Code::kInfinity));
    const bool zero = note == TapeNote::kZero || note == TapeNote::kMinusZero;
    return {ValueOf<F>(note), zero, note != TapeNote::kNan && !zero};
  }
  const typename Lane<F>::Carrier value = Code::Decode(code);
  return {value, value != 0 && IsTiny<F>(static_cast<double>(value)), false};
}

template <class T>
SIMGRAD_HD inline void CountTaped(RangeTally& tally, const Taped<T>& taped) {
  tally.underflows += taped.underflow ? 1 : 0;
  tally.overflows += taped.overflow ? 1 : 0;
}

// A value of F that was not rounded.
template <Format F>
SIMGRAD_HD inline typename TapeCode<F>::Bits Keep(typename Lane<F>::Carrier x) {
  if (x != x) return static_cast<typename TapeCode<F>::Bits>(TapeCode<F>::kInfinity + 1);
  return TapeCode<F>::Encode(x);
}
template <Format F>
SIMGRAD_HD inline typename Lane<F>::Carrier Kept(typename TapeCode<F>::Bits code) {
  return code == TapeCode<F>::kInfinity + 1 ? ValueOf<F>(TapeNote::kNan)
                                            : TapeCode<F>::Decode(code);
}

// Counts units, as a recording pass would take them. More than positions can tell are counted too,
// so that the host can refuse to record them.
struct TapeMeter {
  unsigned long long top = 0;
  SIMGRAD_HD uint32_t Take(uint32_t units) {
    const unsigned long long at = top;
    top += units;
    return static_cast<uint32_t>(at);
  }
};

template <class Unit>
struct Tape : TapeMeter {
  Unit* units;
  int64_t lanes;

  SIMGRAD_HD Tape(void* memory, int64_t lane, int64_t of_lanes, int64_t lane_start)
      : units(static_cast<Unit*>(memory) + lane_start + lane), lanes(of_lanes) {}

  template <class Bits>
  SIMGRAD_HD static constexpr int UnitsOf() {
    return sizeof(Bits) <= sizeof(Unit) ? 1 : static_cast<int>(sizeof(Bits) / sizeof(Unit));
  }
  // Entry `index` of the values of type Bits that begin at unit `at`.
  template <class Bits>
  SIMGRAD_HD void Store(uint32_t at, int64_t index, Bits bits) {
    constexpr int kUnits = UnitsOf<Bits>();
    Unit* const to = units + (static_cast<int64_t>(at) + index * kUnits) * lanes;
    if constexpr (kUnits == 1) {
      to[0] = static_cast<Unit>(bits);
    } else {
      for (int k = 0; k < kUnits; ++k) {
        to[k * lanes] = static_cast<Unit>(bits >> (8 * sizeof(Unit) * k));
      }
    }
  }
  template <class Bits>
  SIMGRAD_HD Bits Load(uint32_t at, int64_t index) const {
    constexpr int kUnits = UnitsOf<Bits>();
    const Unit* const from = units + (static_cast<int64_t>(at) + index * kUnits) * lanes;
    if constexpr (kUnits == 1) {
      return static_cast<Bits>(from[0]);
    } else {
      Bits bits = 0;
      for (int k = 0; k < kUnits; ++k) {
        bits |= static_cast<Bits>(static_cast<Bits>(from[k * lanes]) << (8 * sizeof(Unit) * k));
      }
      return bits;
    }
  }
};

}  // namespace simgrad::sim::cuda::device
