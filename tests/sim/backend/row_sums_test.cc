// Sums of products have the bits of products that are summed.
#include "sim/backend/row_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace simgrad::sim {
namespace {

// A usual number, a zero of either sign, or one whose products are rounded to subnormals or overflow.
template <class T>
T Drawn(std::mt19937& random) {
  const int exponent = std::numeric_limits<T>::max_exponent / 2;
  const T number = std::uniform_real_distribution<T>(-1, 1)(random);
  switch (random() % 8) {
    case 0:
      return std::copysign(T{0}, number);
    case 1:
      return std::ldexp(number, -exponent);
    case 2:
      return std::ldexp(number, exponent);
    default:
      return number;
  }
}

template <class T>
void ExpectSumsOfProducts() {
  std::mt19937 random(11);
  for (const int64_t n : {2, 4, 8, 16, 32, 64}) {
    for (const auto& [rows, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 64}, {64, 1}, {5, 37}, {21, 3}}) {
      const int64_t lanes = n + static_cast<int64_t>(random() % 3);
      const int64_t first = lanes - n;
      std::vector<T> factors(static_cast<size_t>((rows + columns) * lanes));
      for (T& x : factors) x = Drawn<T>(random);
      // Products of zeros alone, of both signs: sums of a row of them.
      for (int64_t r = 0; r < lanes; ++r) factors[static_cast<size_t>(r)] = -T{0};
      const int64_t elements = rows * columns;
      std::vector<T> cells(static_cast<size_t>(elements * lanes));
      MultiplyRows(factors.data(), rows, columns, lanes, 0, elements, cells.data());
      std::vector<double> expected(static_cast<size_t>(elements), 7.0);
      std::vector<double> actual(expected.size(), 8.0);
      SumRows<T>(cells.data() + first, lanes, elements, n, nullptr, true, expected.data());
      ASSERT_TRUE(SumProducts(factors.data() + first, rows, columns, lanes, n, actual.data()));
      for (size_t e = 0; e < expected.size(); ++e) {
        EXPECT_EQ(std::bit_cast<uint64_t>(actual[e]), std::bit_cast<uint64_t>(expected[e]))
            << rows << " x " << columns << ", " << n << " rows, element " << e;
      }
      // In pieces from the middle on.
      const int64_t begin = elements / 3;
      std::vector<T> part(static_cast<size_t>((elements - begin) * lanes));
      MultiplyRows(factors.data(), rows, columns, lanes, begin, elements - begin, part.data());
      for (size_t k = 0; k < part.size(); ++k) {
        const T whole = cells[static_cast<size_t>(begin * lanes) + k];
        ASSERT_TRUE(part[k] == whole || (std::isnan(part[k]) && std::isnan(whole))) << k;
      }
    }
  }
}

TEST(RowSums, OfProductsHaveTheBitsOfSumsOfCells) {
  ExpectSumsOfProducts<float>();
  ExpectSumsOfProducts<double>();
}

TEST(RowSums, OfProductsAreLeftWhereRowsAreNoTree) {
  const std::vector<float> factors(300, 1.0F);
  std::vector<double> sums(9, 8.0);
  for (const int64_t n : {0, 1, 3, 48, 128}) {
    EXPECT_FALSE(SumProducts(factors.data(), 1, 1, 128, n, sums.data())) << n;
  }
  EXPECT_EQ(sums, std::vector<double>(9, 8.0));
}

TEST(RowSums, ProductsOfZerosArePositive) {
  const std::vector<float> factors = {-0.0F, 0.0F, 1.0F, -1.0F};
  std::vector<float> cells(2);
  MultiplyRows(factors.data(), 1, 1, 2, 0, 1, cells.data());
  for (const float cell : cells) EXPECT_EQ(std::bit_cast<uint32_t>(cell), 0u);
}

}  // namespace
}  // namespace simgrad::sim
