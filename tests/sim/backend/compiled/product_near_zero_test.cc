#include "sim/backend/compiled/scalars/product_near_zero.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

namespace simgrad::sim::compiled {
namespace {

// A number whose exponent field lies in [low, high].
template <class C>
C Drawn(std::mt19937_64& draws, uint64_t low, uint64_t high) {
  using Bits = typename NearZero<C>::Bits;
  constexpr int kMantissa = NearZero<C>::kMantissa;
  const Bits field = static_cast<Bits>(low + draws() % (high - low + 1)) << kMantissa;
  constexpr Bits kExponents = (2 * NearZero<C>::kBias + 1) << kMantissa;
  Bits rest = static_cast<Bits>(draws()) & ~kExponents;
  // Ties need factors of few bits.
  if (draws() % 3 == 0) rest &= ~((Bits{1} << (draws() % kMantissa)) - 1);
  return std::bit_cast<C>(rest | field);
}

template <class C>
void ExpectThePlainProduct(C a, C b) {
  using Bits = typename NearZero<C>::Bits;
  const C plain = a * b;
  const C product = ProductNearZero(a, b);
  if (std::isnan(plain) && std::isnan(product)) return;
  ASSERT_EQ(std::bit_cast<Bits>(plain), std::bit_cast<Bits>(product)) << a << " * " << b;
}

template <class C>
void ExpectPlainProducts() {
  constexpr uint64_t kBias = NearZero<C>::kBias;
  constexpr uint64_t kMantissa = NearZero<C>::kMantissa;
  constexpr uint64_t kMost = 2 * kBias + 1;
  constexpr uint64_t kLarge =
      kBias + (kBias == 127 ? 41 : 460);  // from here on the processor multiplies
  struct Range {
    uint64_t low, high;
  };
  // Pairs of exponents: subnormal times about one, tiny times tiny, two halves of the way down,
  // the limits of what is done by units, subnormal times anything, anything.
  constexpr Range kPairs[][2] = {{{0, 1}, {kBias - kMantissa - 3, kBias + kMantissa + 3}},
                                 {{1, 60}, {kBias - 62, kBias + 2}},
                                 {{kBias / 2 - kMantissa, kBias / 2 + kMantissa},
                                  {kBias / 2 - kMantissa, kBias / 2 + kMantissa}},
                                 {{kBias / 2 - 1, kBias / 2 + 1}, {kLarge - 1, kLarge + 1}},
                                 {{0, 0}, {0, kMost}},
                                 {{0, kMost}, {0, kMost}}};
  std::mt19937_64 draws(7);
  for (const auto& [first, second] : kPairs) {
    for (int k = 0; k < 200'000 && !::testing::Test::HasFatalFailure(); ++k) {
      const C a = Drawn<C>(draws, first.low, first.high);
      const C b = Drawn<C>(draws, second.low, second.high);
      ExpectThePlainProduct(a, b);
      ExpectThePlainProduct(b, a);
      ExpectThePlainProduct(a, C{0});
    }
  }
}

TEST(ProductNearZeroTest, GivesTheBitsOfTheProductInF32) { ExpectPlainProducts<float>(); }
TEST(ProductNearZeroTest, GivesTheBitsOfTheProductInF64) { ExpectPlainProducts<double>(); }

}  // namespace
}  // namespace simgrad::sim::compiled
