// Products that the kernels keep from the processor have the bits of its own.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "precision/arithmetic.h"
#include "precision/rounding.h"
#include "sim/backend/cpu/cache_lines.h"
#include "sim/backend/cpu/cpu_executor.h"
#include "sim/backend/cpu/kernel_table.h"

namespace simgrad::sim::cpu {
namespace {

using precision::Format;

constexpr int64_t kLanes = 272;  // more than a kernel takes at once

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables = {BaselineKernels()};
  if (IsSupported(CpuInstructions::kAvx2)) tables.push_back(Avx2Kernels());
  if (IsSupported(CpuInstructions::kAvx512)) tables.push_back(Avx512Kernels());
  return tables;
}

// A number of the format with an exponent between two, or a special one.
class Numbers {
 public:
  Numbers(Format format, uint64_t seed) : format_(format), generator_(seed) {}

  double Between(int lowest, int highest) {
    const int exponent = std::uniform_int_distribution<int>(lowest, highest)(generator_);
    const double fraction = std::uniform_real_distribution<double>(1.0, 2.0)(generator_);
    const double x = precision::RoundTo(format_, std::ldexp(fraction, exponent));
    return (generator_() & 1) != 0 ? -x : x;
  }
  double Any() {
    const double infinity = std::numeric_limits<double>::infinity();
    switch (generator_() % 12) {
      case 0:
        return 0.0;
      case 1:
        return -0.0;
      case 2:
        return (generator_() & 1) != 0 ? infinity : -infinity;
      case 3:
        return std::numeric_limits<double>::quiet_NaN();
      case 4:
        return Between(-smallest() - 1, -smallest() + 2);
      case 5:
        return Between(smallest_normal() - 1, smallest_normal());
      default:
        return Between(smallest() - 2, -smallest_normal());
    }
  }
  double Subnormal() { return Between(smallest() - 1, smallest_normal() - 1); }
  int smallest() const { return precision::Traits(format_).emin; }
  int smallest_normal() const { return precision::Traits(format_).min_exponent; }

 private:
  Format format_;
  std::mt19937_64 generator_;
};

// The rows that the ways through the kernels are made for.
enum class Rows { kAny, kSubnormal, kStuck, kZero, kNormal, kBoundary };
constexpr Rows kAllRows[] = {Rows::kAny,  Rows::kSubnormal, Rows::kStuck,
                             Rows::kZero, Rows::kNormal,    Rows::kBoundary};

std::pair<double, double> Factors(Rows rows, Numbers& numbers) {
  switch (rows) {
    case Rows::kAny:
      return {numbers.Any(), numbers.Any()};
    case Rows::kSubnormal:
      return {numbers.Subnormal(), numbers.Between(-20, 0)};
    case Rows::kStuck:
      return {std::ldexp(1.0, numbers.smallest()), numbers.Between(-3, -1)};
    case Rows::kZero:
      return {0.0, numbers.Between(-3, 3)};
    case Rows::kNormal:
      return {numbers.Between(-5, 5), numbers.Between(-5, 5)};
    case Rows::kBoundary:
      break;
  }
  // Products on both sides of the smallest normal number.
  const int exponent = numbers.smallest_normal() / 2;
  return {numbers.Between(exponent - 12, exponent + 2), numbers.Between(exponent, exponent)};
}

template <class C>
class Block {
 public:
  explicit Block(Format format) : format_(format) {
    for (RowBytes& row : rows_) row.resize(kLanes * sizeof(C));
  }
  void Fill(Rows rows, uint64_t seed) {
    Numbers numbers(format_, seed);
    for (int64_t j = 0; j < kLanes; ++j) {
      const auto [x, y] = Factors(rows, numbers);
      At(0)[j] = static_cast<C>(x);
      At(1)[j] = static_cast<C>(y);
      At(2)[j] = static_cast<C>(numbers.Between(-5, 5));
    }
  }
  C* At(size_t row) { return reinterpret_cast<C*>(rows_[row].data()); }
  Lanes Evading() {
    for (size_t k = 0; k < 4; ++k) at_[k] = rows_[k].data();
    Lanes lanes;
    lanes.at = at_;
    lanes.width[0] = kLanes;
    lanes.evades_subnormals = true;
    lanes.magnitudes = magnitudes_;
    return lanes;
  }

 private:
  Format format_;
  RowBytes rows_[4];
  std::byte* at_[4] = {};
  uint64_t magnitudes_[4] = {};
};

template <class C>
void ExpectSame(C got, double want, double x, double y) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << x << " * " << y;
    return;
  }
  const double exact = static_cast<double>(got);
  EXPECT_EQ(std::bit_cast<uint64_t>(exact), std::bit_cast<uint64_t>(want)) << x << " * " << y;
}

template <class C>
void ExpectProducts(const KernelTable& table, Format format, Rows rows, Operands2 kind,
                    uint64_t seed) {
  Block<C> block(format);
  block.Fill(rows, seed);
  Lanes lanes = block.Evading();
  const size_t f = static_cast<size_t>(format);
  const bool uniform = kind != Operands2::kVV;
  Instruction i;
  i.to = 3;
  i.a = kind == Operands2::kUV ? 1 : 0;
  i.b = kind == Operands2::kUV ? 0 : 1;
  i.c = 2;
  const auto y = [&](int64_t j) { return static_cast<double>(block.At(1)[uniform ? 0 : j]); };
  table.arithmetic2[kMul2][f][static_cast<size_t>(kind)](i, lanes);
  for (int64_t j = 0; j < kLanes; ++j) {
    const double x = static_cast<double>(block.At(0)[j]);
    ExpectSame(block.At(3)[j], precision::Mul(format, x, y(j)), x, y(j));
  }
  if (kind == Operands2::kUV) return;
  table.multiply_add[0][f][uniform ? 1 : 0](i, lanes);
  for (int64_t j = 0; j < kLanes; ++j) {
    const double x = static_cast<double>(block.At(0)[j]);
    const double product = precision::Mul(format, x, y(j));
    const double c = static_cast<double>(block.At(2)[j]);
    ExpectSame(block.At(3)[j], precision::Add(format, product, c), x, y(j));
  }
}

TEST(ProductsNearZero, HaveTheBitsOfTheSpecificationInEveryKernel) {
  for (const KernelTable* table : Tables()) {
    for (Rows rows : kAllRows) {
      for (Operands2 kind : {Operands2::kVV, Operands2::kVU, Operands2::kUV}) {
        for (uint64_t seed = 0; seed < 40; ++seed) {
          SCOPED_TRACE(testing::Message()
                       << table->name << ", rows " << static_cast<int>(rows) << ", kind "
                       << static_cast<int>(kind) << ", seed " << seed);
          ExpectProducts<float>(*table, Format::kF32, rows, kind, seed);
          ExpectProducts<double>(*table, Format::kF64, rows, kind, seed);
          ExpectProducts<float>(*table, Format::kBf16, rows, kind, seed);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// round(sum + round(round(x by) y)) for two sums, in one pass where nothing is near zero.
TEST(ScaledRows, AreRoundedAfterEveryProductAndEverySum) {
  constexpr Format kFormats[] = {Format::kF32, Format::kF64, Format::kBf16, Format::kF16};
  const auto expect = [](const KernelTable& table, Format format, auto carrier, bool by, bool two,
                         bool masked) {
    using C = decltype(carrier);
    Block<C> block(format);
    block.Fill(Rows::kNormal, 1);
    std::vector<int32_t> mask(kLanes);
    for (int64_t j = 0; j < kLanes; ++j) mask[static_cast<size_t>(j)] = j % 3 == 0 ? -1 : 0;
    const C factors[2] = {C(1.375), C(-0.6875)};
    std::vector<C> sums[2];
    for (auto& sum : sums) sum.assign(block.At(2), block.At(2) + kLanes);
    ScaledRow row;
    row.x = block.At(0);
    row.by = by ? block.At(1) : nullptr;
    row.y = &factors[0];
    row.second_y = &factors[1];
    row.sum = sums[0].data();
    row.second_sum = two ? sums[1].data() : nullptr;
    table.accumulate_scaled[static_cast<size_t>(format)](row, masked ? mask.data() : nullptr,
                                                         kLanes);
    for (int64_t j = 0; j < kLanes; ++j) {
      const double x = static_cast<double>(block.At(0)[j]);
      const double y = static_cast<double>(block.At(1)[j]);
      const double z = by ? precision::Mul(format, x, y) : x;
      for (size_t k = 0; k < 2; ++k) {
        const double before = static_cast<double>(block.At(2)[j]);
        const double scaled = precision::Mul(format, z, static_cast<double>(factors[k]));
        const bool added = (k == 0 || two) && (!masked || j % 3 == 0);
        const double want = added ? precision::Add(format, before, scaled) : before;
        ExpectSame(sums[k][static_cast<size_t>(j)], want, x, y);
      }
    }
  };
  for (const KernelTable* table : Tables()) {
    for (const Format format : kFormats) {
      for (int choice = 0; choice < 8; ++choice) {
        const bool by = (choice & 1) != 0, two = (choice & 2) != 0, masked = (choice & 4) != 0;
        SCOPED_TRACE(testing::Message() << table->name << ", format " << static_cast<int>(format)
                                        << ", choice " << choice);
        if (format == Format::kF64) {
          expect(*table, format, double{}, by, two, masked);
        } else {
          expect(*table, format, float{}, by, two, masked);
        }
      }
    }
  }
}

// What a watch goes by, and what lets a sum stay as it is.
TEST(ProductsNearZero, SayWhetherTheyMetSubnormalsAndWhetherAllAreZero) {
  for (const KernelTable* table : Tables()) {
    if (table == BaselineKernels()) continue;  // leaves products to the processor
    const auto products = table->products[static_cast<size_t>(Format::kF32)][1];
    Block<float> block(Format::kF32);
    const auto met = [&](Rows rows) {
      block.Fill(rows, 1);
      return products(block.At(3), block.At(0), block.At(1), kUnknownMagnitudes, kLanes);
    };
    EXPECT_TRUE(met(Rows::kSubnormal).subnormal);
    EXPECT_TRUE(met(Rows::kZero).zero);
    EXPECT_FALSE(met(Rows::kZero).subnormal);
    EXPECT_FALSE(met(Rows::kNormal).subnormal);
    EXPECT_FALSE(met(Rows::kNormal).zero);
    block.Fill(Rows::kStuck, 1);
    block.At(1)[0] = 0.25f;
    const ProductsMet vanished =
        products(block.At(3), block.At(0), block.At(1), kUnknownMagnitudes, kLanes);
    EXPECT_TRUE(vanished.subnormal);
    EXPECT_TRUE(vanished.zero);
  }
}

}  // namespace
}  // namespace simgrad::sim::cpu
