#include "sim/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

namespace simgrad::sim {
namespace {

TEST(Tensor, RoundsOnceToItsDtypeAndReadsItBackExactly) {
  Tensor half = Tensor::Zeros(DType::kF16, {2});
  half.Set(0, 2049.0);  // the tie between 2048 and 2050 goes to the even 2048
  half.Set(1, 65520.0);
  EXPECT_EQ(half.Get(0), 2048.0);
  EXPECT_EQ(half.Get(1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(half.bytes, (std::vector<uint8_t>{0x00, 0x68, 0x00, 0x7C}));
}

TEST(Tensor, WritesTheCanonicalNanOfEveryFormat) {
  for (DType dtype :
       {DType::kF64, DType::kF32, DType::kBf16, DType::kF16, DType::kE4m3, DType::kE5m2}) {
    Tensor tensor = Tensor::Zeros(dtype, {});
    tensor.Set(0, -std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(std::isnan(tensor.Get(0))) << DTypeName(dtype);
    EXPECT_EQ(tensor.bytes.back() & 0x80, 0) << DTypeName(dtype);
  }
}

TEST(Tensor, KeepsEveryI64) {
  Tensor tensor = Tensor::Zeros(DType::kI64, {2});
  tensor.SetInt(0, INT64_MIN);
  tensor.SetInt(1, INT64_MAX);
  EXPECT_EQ(tensor.GetInt(0), INT64_MIN);
  EXPECT_EQ(tensor.GetInt(1), INT64_MAX);
}

TEST(Tensor, ReadsNegativeI32AndSaturatesBeyondIt) {
  Tensor tensor = Tensor::Zeros(DType::kI32, {2});
  tensor.SetInt(0, -5);
  tensor.SetInt(1, int64_t{1} << 40);
  EXPECT_EQ(tensor.GetInt(0), -5);
  EXPECT_EQ(tensor.GetInt(1), INT32_MAX);
}

TEST(Tensor, ReadsTheLargestUnsignedNumbersAndSaturatesBeyondThem) {
  for (const auto& [dtype, largest] :
       {std::pair(DType::kU32, int64_t{UINT32_MAX}), std::pair(DType::kU8, int64_t{UINT8_MAX})}) {
    Tensor tensor = Tensor::Zeros(dtype, {4});
    tensor.SetInt(0, largest);
    tensor.SetInt(1, largest + 1);
    tensor.SetInt(2, -1);
    tensor.Set(3, static_cast<double>(largest));
    EXPECT_EQ(tensor.GetInt(0), largest);
    EXPECT_EQ(tensor.GetInt(1), largest);
    EXPECT_EQ(tensor.GetInt(2), 0);
    EXPECT_EQ(tensor.Get(3), static_cast<double>(largest));
  }
}

TEST(Tensor, HasItsSizeInBytesForEveryDtype) {
  for (DType dtype :
       {DType::kF64, DType::kF32, DType::kBf16, DType::kF16, DType::kE4m3, DType::kE5m2,
        DType::kI32, DType::kI64, DType::kBool, DType::kU32, DType::kU8}) {
    EXPECT_EQ(Tensor::Zeros(dtype, {3, 2}).bytes.size(), 6 * DTypeSize(dtype)) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace simgrad::sim
