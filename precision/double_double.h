// Arithmetic on unevaluated sums of two doubles, for the elementary functions.
//
// Maths: a DoubleDouble stands for hi + lo, |lo| at most about one ulp of hi. Only adds,
// multiplies, divides and integer operations are used, so host and device agree to the bit.
// Accuracy: each operation names its error. They assume that no product of halves over- or
// underflows; callers scale where it could.
// Cost: straight-line code, nothing that keeps a compiler from vectorising. Threads: pure.
// Source: T. J. Dekker, A floating-point technique for extending the available precision, Numer.
// Math. 18 (1971); D. E. Knuth, TAOCP volume 2, 4.2.2. Deviation: operands are split by masking
// bits rather than by a multiplication, which cannot overflow.
#pragma once

#include "precision/host_device.h"

// Functions that disappear into the loop that calls them: a call left in it would keep a host
// compiler from vectorising it. The device compiler inlines by its own judgement.
#ifdef __CUDACC__
#define SIMGRAD_FLAT SIMGRAD_HD
#else
#define SIMGRAD_FLAT [[gnu::always_inline]]
#endif

namespace simgrad::precision::internal {

struct DoubleDouble {
  double hi = 0;
  double lo = 0;
};

inline constexpr uint64_t kSignBit = 0x8000000000000000u;

SIMGRAD_FLAT constexpr double QuietNan() { return DoubleOf(kDoubleNanBits); }
SIMGRAD_FLAT constexpr double Infinity() { return DoubleOf(kDoubleInfinityBits); }
SIMGRAD_FLAT constexpr double Magnitude(double x) { return DoubleOf(BitsOf(x) & ~kSignBit); }

// x with its sign flipped where sign_bit is kSignBit; sign_bit is that or 0.
SIMGRAD_FLAT constexpr double FlipSign(double x, uint64_t sign_bit) {
  return DoubleOf(BitsOf(x) ^ sign_bit);
}

// a where condition holds, else b, by masks: a branch here would end vectorisation.
SIMGRAD_FLAT constexpr double Select(bool condition, double a, double b) {
  const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(condition);
  return DoubleOf((BitsOf(a) & mask) | (BitsOf(b) & ~mask));
}

// 1.5 * 2^52: adding it to |x| < 2^51 rounds x to an integer, to be read in the low bits of the
// sum.
inline constexpr double kRoundingShifter = 0x1.8p+52;

SIMGRAD_FLAT constexpr int64_t IntegerOfShifted(double shifted) {
  return static_cast<int64_t>(BitsOf(shifted) - BitsOf(kRoundingShifter));
}

// i as a double, for |i| < 2^51.
SIMGRAD_FLAT constexpr double DoubleOfInteger(int64_t i) {
  return DoubleOf(BitsOf(kRoundingShifter) + static_cast<uint64_t>(i)) - kRoundingShifter;
}

// 2^e, for exponents of normal numbers; other e give some double, and no undefined behaviour.
SIMGRAD_FLAT constexpr double PowerOfTwo(int64_t e) {
  return DoubleOf(static_cast<uint64_t>(e + 1023) << 52);
}

// x without its last 27 bits, so that at most 26 remain. TopBits(x) and x - TopBits(x) have
// products with numbers of 27 and 26 bits that are exact.
SIMGRAD_FLAT constexpr double TopBits(double x) {
  return DoubleOf(BitsOf(x) & ~uint64_t{0x7FFFFFF});
}

// a + b exactly, where a is zero, |a| >= |b|, or a is a multiple of the ulp of b.
SIMGRAD_FLAT constexpr DoubleDouble FastTwoSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// a + b exactly.
SIMGRAD_FLAT constexpr DoubleDouble TwoSum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// a b, hi being the rounded product; relative error below 2^-104 (low half times low half has 54
// bits, so the last sum may round).
SIMGRAD_FLAT constexpr DoubleDouble Product(double a, double b) {
  const double a_top = TopBits(a);
  const double a_rest = a - a_top;
  const double b_top = TopBits(b);
  const double b_rest = b - b_top;
  const double product = a * b;
  const double rest =
      ((a_top * b_top - product) + a_top * b_rest + a_rest * b_top) + a_rest * b_rest;
  return {product, rest};
}

// n / d, hi being near the rounded quotient; relative error below 2^-100.
SIMGRAD_FLAT constexpr DoubleDouble Quotient(DoubleDouble n, DoubleDouble d) {
  const double q = n.hi / d.hi;
  const DoubleDouble qd = Product(q, d.hi);
  const double remainder = (((n.hi - qd.hi) - qd.lo) + n.lo) - q * d.lo;
  return FastTwoSum(q, remainder / d.hi);
}

// m 2^e rounded once, also where the result is subnormal or overflows.
//
// Maths: m.hi > 0, and where the result can be subnormal, m.hi in [1/2, 2). A subnormal result has
// the spacing 2^-1074. Adding the anchor 2^(-1022-e) > m.hi makes that spacing the ulp of the sum,
// so the one rounding happens in that sum and the scaling is exact. Scaling is done in two factors,
// as 2^e need not be a double. For -1150 <= e <= 1100.
SIMGRAD_FLAT constexpr double RoundScaled(DoubleDouble m, int64_t e) {
  const int64_t exponent = e - static_cast<int64_t>(m.hi < 1.0);
  const double anchor = Select(exponent < -1022, PowerOfTwo(-1022 - e), 0.0);
  const DoubleDouble sum = FastTwoSum(anchor, m.hi);
  const double rounded = (sum.hi + (sum.lo + m.lo)) - anchor;
  const int64_t half = e >> 1;
  return (rounded * PowerOfTwo(half)) * PowerOfTwo(e - half);
}

}  // namespace simgrad::precision::internal
