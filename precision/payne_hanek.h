// Argument reduction modulo pi/2 for every double; large arguments use integer arithmetic.
//
// Maths: |x| = quadrant pi/2 + (hi + lo), |hi + lo| <= pi/4 (1 + 2^-50).
// Accuracy: the relative error of hi + lo is below 2^-68 for every finite x. No double is closer
//   than 2^-62 to a non-zero multiple of pi/2, so an absolute error of 2^-130 is enough.
// Cost: some 30 operations below 2^20; above, a branch of integer multiplications. Threads: pure.
// Source: M. Payne and R. Hanek, Radian reduction for trigonometric functions, SIGNUM 18 (1983).
#pragma once

#include "precision/double_double.h"
#include "precision/elementary_tables.h"

namespace simgrad::precision::internal {

struct QuarterTurns {
  int64_t quadrant;  // modulo 4
  DoubleDouble rest;
};

struct Wide {
  uint64_t high;
  uint64_t low;
};

// The 128-bit product of two words, from products of their halves.
SIMGRAD_FLAT constexpr Wide MultiplyWords(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xFFFFFFFFu;
  const uint64_t a1 = a >> 32;
  const uint64_t b0 = b & 0xFFFFFFFFu;
  const uint64_t b1 = b >> 32;
  const uint64_t low = a0 * b0;
  const uint64_t middle = a1 * b0 + (low >> 32);
  const uint64_t cross = a0 * b1 + (middle & 0xFFFFFFFFu);
  return {a1 * b1 + (middle >> 32) + (cross >> 32), (cross << 32) | (low & 0xFFFFFFFFu)};
}

// 64 digits of 2/pi, the first of weight 2^-first; first >= -63.
SIMGRAD_FLAT inline uint64_t TwoOverPiDigits(int64_t first) {
  const int64_t position = first + 63;
  const int64_t word = position >> 6;
  const int64_t shift = position & 63;
  const uint64_t high = TwoOverPiWord(word) << shift;
  return shift == 0 ? high : high | (TwoOverPiWord(word + 1) >> (64 - shift));
}

SIMGRAD_FLAT constexpr int LeadingZeros(uint64_t word) {
  int zeros = 0;
  for (int width = 32; width > 0; width /= 2) {
    const bool is_clear = (word >> (64 - width)) == 0;
    zeros += is_clear ? width : 0;
    word = is_clear ? word << width : word;
  }
  return zeros;
}

// pi/2 to 107 bits.
inline constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
inline constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;

// fraction pi/2, the fraction being (f0, f1, f2) 2^-192 and at least 2^-100.
SIMGRAD_FLAT constexpr DoubleDouble TimesHalfPi(uint64_t f0, uint64_t f1, uint64_t f2) {
  const bool is_tiny = f0 == 0;
  const uint64_t w0 = is_tiny ? f1 : f0;
  const uint64_t w1 = is_tiny ? f2 : f1;
  const uint64_t w2 = is_tiny ? 0 : f2;
  const int zeros = LeadingZeros(w0);
  const uint64_t top = zeros == 0 ? w0 : (w0 << zeros) | (w1 >> (64 - zeros));
  const uint64_t next = zeros == 0 ? w1 : (w1 << zeros) | (w2 >> (64 - zeros));
  // 53 digits and then 64 more.
  const double scale = PowerOfTwo(-53 - zeros - (is_tiny ? 64 : 0));
  const double high = static_cast<double>(top >> 11) * scale;
  const double low = static_cast<double>((top << 53) | (next >> 11)) * (scale * 0x1p-64);
  const DoubleDouble product = Product(high, kHalfPiHigh);
  return FastTwoSum(product.hi, product.lo + (high * kHalfPiLow + low * kHalfPiHigh));
}

// For finite x >= 2^-11. x = M 2^E with M < 2^53; of M 2^E (2/pi) only the part modulo 4 matters,
// and the digits of 2/pi of weight above 2^(1-E) contribute multiples of 4 to it. The 192 digits
// from there on, times M, modulo 2^192, are that part times 2^190, short by less than 2^53.
SIMGRAD_FLAT inline QuarterTurns ReduceLarge(double x) {
  const int64_t exponent = static_cast<int64_t>(BitsOf(x) >> 52) - 1075;
  const uint64_t m = (BitsOf(x) & 0xFFFFFFFFFFFFFu) | 0x10000000000000u;
  const int64_t first = exponent - 1;
  const Wide product2 = MultiplyWords(m, TwoOverPiDigits(first + 128));
  const Wide product1 = MultiplyWords(m, TwoOverPiDigits(first + 64));
  const uint64_t middle = product2.high + product1.low;
  const uint64_t carry = middle < product2.high ? 1 : 0;
  const uint64_t top = product1.high + m * TwoOverPiDigits(first) + carry;
  // The first two digits are the quadrant, the others the fraction of the next one.
  const uint64_t f0 = (top << 2) | (middle >> 62);
  const uint64_t f1 = (middle << 2) | (product2.low >> 62);
  const uint64_t f2 = product2.low << 2;
  // From one half on, count from the quadrant above: the fraction becomes its two's complement.
  const bool is_above = (f0 >> 63) != 0;
  const uint64_t n2 = is_above ? ~f2 + 1 : f2;
  const uint64_t carry1 = is_above && f2 == 0 ? 1 : 0;
  const uint64_t n1 = is_above ? ~f1 + carry1 : f1;
  const uint64_t carry0 = carry1 != 0 && f1 == 0 ? 1 : 0;
  const uint64_t n0 = is_above ? ~f0 + carry0 : f0;
  const DoubleDouble rest = TimesHalfPi(n0, n1, n2);
  return {static_cast<int64_t>(((top >> 62) + (is_above ? 1 : 0)) & 3),
          {is_above ? -rest.hi : rest.hi, is_above ? -rest.lo : rest.lo}};
}

// For 0 <= x < 2^20, by subtracting k pi/2 in four parts; the first three products are exact.
SIMGRAD_FLAT constexpr QuarterTurns ReduceModerate(double x) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  // pi/2 in three parts of 32 bits and the rest rounded to f64.
  constexpr double kPart1 = 0x1.921fb544p+0;
  constexpr double kPart2 = 0x1.0b4611a6p-34;
  constexpr double kPart3 = 0x1.3198a2ep-69;
  constexpr double kPart4 = 0x1.b839a252049c1p-104;
  const double shifted = x * kTwoOverPi + kRoundingShifter;
  const double k = shifted - kRoundingShifter;
  const DoubleDouble second = TwoSum(x - k * kPart1, -(k * kPart2));
  const DoubleDouble third = TwoSum(second.hi, -(k * kPart3));
  // If third.hi is small by cancellation, second.lo and third.lo are zero.
  const double low = (second.lo + third.lo) - k * kPart4;
  return {IntegerOfShifted(shifted) & 3, TwoSum(third.hi, low)};
}

// For finite x >= 0.
SIMGRAD_FLAT inline QuarterTurns ReduceQuarterTurns(double x) {
  return x < 0x1p+20 ? ReduceModerate(x) : ReduceLarge(x);
}

}  // namespace simgrad::precision::internal
