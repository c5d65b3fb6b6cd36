// Arguments at which the elementary functions are hard.
//
// Maths: random bit patterns meet every exponent; uniform ones the interval in which a function is
// neither trivial nor saturated; the named sets the places where its algorithm changes its path.
// Everything is a pure function of its arguments and of fixed seeds.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "precision/host_device.h"
#include "tests/precision/mpfr_oracle.h"

namespace simgrad::precision {

using Samples = std::vector<double>;

// Finite doubles whose bits are random, so every exponent and sign is as likely.
inline double RandomFinite(std::mt19937_64& random) {
  double x = DoubleOf(random());
  while (!std::isfinite(x)) x = DoubleOf(random());
  return x;
}

inline double RandomIn(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1p-53);
}

// x, and the `reach` doubles on either side of it.
inline void AddNeighbours(Samples& samples, double x, int reach) {
  double below = x;
  double above = x;
  samples.push_back(x);
  for (int i = 0; i < reach; ++i) {
    samples.push_back(below = std::nextafter(below, -HUGE_VAL));
    samples.push_back(above = std::nextafter(above, HUGE_VAL));
  }
}

// ±1 and 0 and what is next to them, powers of two with neighbours, the ends of the range.
inline Samples LandmarkSamples() {
  Samples samples;
  for (int e = -1074; e <= 1023; ++e) {
    AddNeighbours(samples, std::ldexp(1.0, e), 2);
    AddNeighbours(samples, -std::ldexp(1.0, e), 2);
  }
  for (double x : {0.0, -0.0, 1.0, -1.0, 0.5, -0.5}) AddNeighbours(samples, x, 200);
  AddNeighbours(samples, std::numeric_limits<double>::max(), 2);
  return samples;
}

// 1 + s 2^-k with random s: where a logarithm cancels.
inline Samples NearOneSamples(int count) {
  std::mt19937_64 random(101);
  Samples samples;
  for (int i = 0; i < count; ++i) {
    const double distance =
        std::ldexp(RandomIn(random, -2.0, 2.0), -static_cast<int>(random() % 54));
    samples.push_back(1.0 + distance);
  }
  return samples;
}

// Middles between and ends of the intervals of the exponential, over its whole range.
inline Samples ExpIntervalSamples() {
  Samples samples;
  for (int k = -140000; k <= 133000; k += 37) {
    AddNeighbours(samples, (k + 0.5) * (M_LN2 / 128), 1);
    AddNeighbours(samples, k * (M_LN2 / 128), 1);
  }
  // Over- and underflow of e^x, and the bounds at which results saturate.
  for (double x : {0x1.62e42fefa39efp+9, -0x1.74910d52d3051p+9, -0x1.74385446d71c3p+9,
                   -0x1.6232bdd7abcd2p+9, 19.06154746539849, 22.0, 36.7368005696771, 40.0, 45.0}) {
    AddNeighbours(samples, x, 500);
    AddNeighbours(samples, -x, 500);
  }
  return samples;
}

// Doubles nearest to multiples of pi/2 and pi/128 with random factors of up to 60 bits.
inline Samples NearTurnSamples(int count) {
  std::mt19937_64 random(103);
  Real pi;
  Real x;
  mpfr_const_pi(pi.get(), MPFR_RNDN);
  Samples samples;
  for (int i = 0; i < count; ++i) {
    const uint64_t k = random() >> (4 + random() % 60);
    mpfr_mul_ui(x.get(), pi.get(), k, MPFR_RNDN);
    mpfr_div_2ui(x.get(), x.get(), i % 4 == 0 ? 7 : 1, MPFR_RNDN);
    AddNeighbours(samples, mpfr_get_d(x.get(), MPFR_RNDN), 1);
  }
  return samples;
}

// The doubles q 2^e closest to multiples of pi/2, for every e: the denominators q < 2^53 of the
// convergents of 2^e (2/pi), which are the best approximations there are. Among them is
// 6381956970095103 2^797, the closest of all.
inline Samples ClosestToTurnSamples() {
  constexpr mpfr_prec_t kBits =
      1400;  // 2^971 (2/pi) needs 971 + 2 * 53 and the error of the expansion
  Real ratio(kBits);
  Real whole(kBits);
  Samples samples;
  for (int e = -52; e <= 971; ++e) {
    mpfr_const_pi(ratio.get(), MPFR_RNDN);
    mpfr_ui_div(ratio.get(), 2, ratio.get(), MPFR_RNDN);
    mpfr_mul_2si(ratio.get(), ratio.get(), e, MPFR_RNDN);
    mpfr_frac(ratio.get(), ratio.get(), MPFR_RNDN);
    uint64_t previous = 0;
    uint64_t denominator = 1;
    while (denominator < (uint64_t{1} << 53)) {
      samples.push_back(std::ldexp(static_cast<double>(denominator), e));
      mpfr_ui_div(ratio.get(), 1, ratio.get(), MPFR_RNDN);
      mpfr_floor(whole.get(), ratio.get());
      mpfr_sub(ratio.get(), ratio.get(), whole.get(), MPFR_RNDN);
      const double quotient = mpfr_get_d(whole.get(), MPFR_RNDN);
      if (quotient * static_cast<double>(denominator) >= 0x1p+53) break;
      const uint64_t next = static_cast<uint64_t>(quotient) * denominator + previous;
      previous = denominator;
      denominator = next;
    }
  }
  return samples;
}

struct Pair {
  double a;
  double b;
};

// Positive bases of every size, with exponents for which the power stays near the range of doubles,
// and whole and half exponents.
inline std::vector<Pair> PowPairs(int count) {
  std::mt19937_64 random(107);
  std::vector<Pair> pairs;
  for (int i = 0; i < count; ++i) {
    const double base = std::fabs(RandomFinite(random));
    pairs.push_back({base, RandomIn(random, -1080, 1080) / std::log2(base)});
    pairs.push_back({RandomIn(random, 0.25, 4), RandomIn(random, -30, 30)});
    const double whole = static_cast<double>(random() % 200) - 100;
    pairs.push_back({RandomIn(random, -100, 100), whole});
    pairs.push_back({RandomIn(random, 0, 100), 0.5 * whole});
    pairs.push_back({RandomFinite(random), RandomFinite(random)});
  }
  return pairs;
}

// (1 + d)^y with d down to 2^-53 and y log(1 + d) up to the ends of the range: the error of the
// logarithm is multiplied by y.
inline std::vector<Pair> PowNearOnePairs(int count) {
  std::mt19937_64 random(109);
  std::vector<Pair> pairs;
  for (int i = 0; i < count; ++i) {
    const double d = std::ldexp(RandomIn(random, -1, 1), -static_cast<int>(random() % 54));
    const double base = 1.0 + d;
    if (base > 0 && base != 1.0) {
      pairs.push_back({base, RandomIn(random, -750, 715) / std::log(base)});
    }
  }
  return pairs;
}

// Powers around the largest finite, the smallest normal and the subnormal numbers.
inline std::vector<Pair> PowEdgePairs(int count) {
  std::mt19937_64 random(113);
  std::vector<Pair> pairs;
  for (int i = 0; i < count; ++i) {
    const double base = i % 2 == 0 ? RandomIn(random, 0, 10) : std::fabs(RandomFinite(random));
    const double log2_base = std::log2(base);
    pairs.push_back({base, 1024 / log2_base * (1 + RandomIn(random, -1e-12, 1e-12))});
    pairs.push_back({base, -1022 / log2_base * (1 + RandomIn(random, -1e-3, 1e-3))});
    pairs.push_back({base, RandomIn(random, -1076, -1020) / log2_base});
  }
  return pairs;
}

// Both signs of both coordinates and both orders of: any two magnitudes, near ones, ratios next to
// the middles j/64 + 1/128 between table entries, and ratios next to the range of doubles.
inline std::vector<Pair> Atan2Pairs(int count) {
  std::mt19937_64 random(127);
  std::vector<Pair> pairs;
  const auto add = [&pairs, &random](double y, double x) {
    const uint64_t signs = random();
    const double a = signs & 1 ? y : -y;
    const double b = signs & 2 ? x : -x;
    pairs.push_back(signs & 4 ? Pair{a, b} : Pair{b, a});
  };
  for (int i = 0; i < count; ++i) {
    const double x = std::fabs(RandomFinite(random));
    add(std::fabs(RandomFinite(random)), x);
    add(x * RandomIn(random, 0, 1), x);
    add(x * std::ldexp(RandomIn(random, 0, 1), -static_cast<int>(random() % 80)), x);
    add(x * ((static_cast<double>(random() % 128) + 0.5 + RandomIn(random, -1e-9, 1e-9)) / 128), x);
    add(std::nextafter(x, 0), x);
    add(DoubleOf(random() >> (12 + random() % 52)), DoubleOf(random() >> (12 + random() % 52)));
    add(std::ldexp(RandomIn(random, 0.5, 1), -1020 - static_cast<int>(random() % 60)),
        RandomIn(random, 0.01, 100));
  }
  return pairs;
}

}  // namespace simgrad::precision
