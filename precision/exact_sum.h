// A fixed-point accumulator that holds every sum of doubles exactly.
//
// Maths: the sum is an integer multiple of 2^-1074, kept as limbs of 32 bits in 64-bit words, so
//   that carries need propagating only every 2^28 additions. Result rounds it once.
// Accuracy: Result is the exact sum correctly rounded (nearest even) to the format. A NaN, or Infs
//   of both signs, give NaN. Infs of one sign give that Inf. An exact zero and the empty sum are
//   +0.
// Errors: none. Threads: one object per thread; host and device. Integer operations only.
// Cost: 560 bytes; about 10 integer operations per addition.
// Source: docs/numerics.md section 3; the idea is Kulisch's long accumulator.
#pragma once

#include "precision/rounding.h"

namespace simgrad::precision {

class ExactSum {
 public:
  SIMGRAD_HD void Add(double x) {
    const uint64_t bits = BitsOf(x);
    const bool negative = (bits >> 63) != 0;
    const int field = static_cast<int>((bits >> 52) & 0x7FF);
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    if (field == 0x7FF) {
      if (fraction != 0) nan_ = true;
      (negative ? negative_infinity_ : positive_infinity_) = true;
      return;
    }
    // x = m * 2^(place - 1074); m << (place mod 32) covers three limbs.
    const uint64_t m = field == 0 ? fraction : fraction | (uint64_t{1} << 52);
    const int place = field == 0 ? 0 : field - 1;
    const int shift = place & 31;
    const uint64_t low = (m & 0xFFFFFFFFu) << shift;
    const uint64_t high = ((m >> 32) << shift) + (low >> 32);
    int64_t* limb = limb_ + (place >> 5);
    const int64_t parts[3] = {static_cast<int64_t>(low & 0xFFFFFFFFu),
                              static_cast<int64_t>(high & 0xFFFFFFFFu),
                              static_cast<int64_t>(high >> 32)};
    for (int i = 0; i < 3; ++i) limb[i] += negative ? -parts[i] : parts[i];
    if (++pending_ == (1 << 28)) Propagate();
  }

  // Adds what another gathered. `add(to, x)` adds to a limb; where it is atomic, several threads
  // may join theirs into one, in any order and at once.
  template <class AddToLimb>
  SIMGRAD_HD void Join(ExactSum other, const AddToLimb& add) {
    other.Propagate();
    for (int i = 0; i < kLimbs; ++i) {
      if (other.limb_[i] != 0) add(limb_[i], other.limb_[i]);
    }
    if (other.nan_) nan_ = true;
    if (other.positive_infinity_) positive_infinity_ = true;
    if (other.negative_infinity_) negative_infinity_ = true;
  }

  // After at most 2^28 sums have been joined without a Result between.
  SIMGRAD_HD double Result(Format format) {
    const bool both = positive_infinity_ && negative_infinity_;
    if (nan_ || both) return DoubleOf(kDoubleNanBits);
    const uint64_t negative_sign = uint64_t{1} << 63;
    if (positive_infinity_) return RoundTo(format, DoubleOf(kDoubleInfinityBits));
    if (negative_infinity_) return RoundTo(format, DoubleOf(kDoubleInfinityBits | negative_sign));
    Propagate();
    const bool negative = limb_[kLimbs - 1] < 0;
    if (negative) Negate();
    const double magnitude = MagnitudeToOdd(format == Format::kF64);
    if (negative) Negate();
    return RoundTo(format, DoubleOf(BitsOf(magnitude) | (negative ? negative_sign : 0)));
  }

 private:
  // 2098 bits of doubles in 66 limbs, and 64 bits for 2^63 additions.
  static constexpr int kLimbs = 68;

  // Leaves every limb in [0, 2^32) but the last, which carries the sign.
  SIMGRAD_HD void Propagate() {
    for (int i = 0; i + 1 < kLimbs; ++i) {
      limb_[i + 1] += limb_[i] >> 32;
      limb_[i] &= 0xFFFFFFFF;
    }
    pending_ = 0;
  }

  SIMGRAD_HD void Negate() {
    for (int i = 0; i < kLimbs; ++i) limb_[i] = -limb_[i];
    Propagate();
  }

  // Bit `place` of the non-negative sum, which stands for 2^(place - 1074).
  SIMGRAD_HD uint64_t Bit(int place) const {
    return static_cast<uint64_t>(limb_[place >> 5] >> (place & 31)) & 1;
  }

  // The non-negative sum as a double: rounded to nearest even for f64; to odd for the narrower
  // formats, which makes their rounding the only one (precision/round_to_odd.h).
  SIMGRAD_HD double MagnitudeToOdd(bool nearest) const {
    int top = 32 * kLimbs - 1;
    while (top > 0 && Bit(top) == 0) --top;
    // The lowest bit kept; at 2^-1074 the integer is the encoding itself, subnormals included.
    const int place = top > 52 ? top - 52 : 0;
    if (place >= 2046) return DoubleOf(kDoubleInfinityBits);
    uint64_t bits = 0;
    for (int i = top; i >= place; --i) bits = bits << 1 | Bit(i);
    // The hidden bit adds one to the exponent field.
    bits += static_cast<uint64_t>(place) << 52;
    const bool guard = place > 0 && Bit(place - 1) != 0;
    bool sticky = false;
    for (int i = 0; i < place - 1 && !sticky; ++i) sticky = Bit(i) != 0;
    if (nearest) {
      if (guard && (sticky || (bits & 1) != 0)) ++bits;  // may carry into Inf, rightly
    } else if (guard || sticky) {
      bits |= 1;
    }
    return DoubleOf(bits);
  }

  int64_t limb_[kLimbs] = {};
  int32_t pending_ = 0;
  bool nan_ = false;
  bool positive_infinity_ = false;
  bool negative_infinity_ = false;
};

}  // namespace simgrad::precision
