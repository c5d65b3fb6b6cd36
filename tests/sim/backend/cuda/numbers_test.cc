// Numbers of three axes from any order of them to the order of tensors, across the borders of
// tiles.
#include "sim/backend/cuda/run/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace simgrad::sim::cuda {
namespace {

TEST(NumbersTest, EveryNumberComesToItsPlace) {
  for (const int64_t instances : {0, 1, 63, 64, 65, 200}) {
    const Extent extent = {instances, 3, 5};
    std::vector<float> memory(static_cast<size_t>(instances * 15));
    // [step][element][instance], as a thread per instance has it.
    for (size_t k = 0; k < memory.size(); ++k) memory[k] = static_cast<float>(k);
    Tensor tensor = Tensor::Zeros(DType::kF32, {instances, 3, 5});
    PutNumbers(MemoryType::kF32, reinterpret_cast<const uint8_t*>(memory.data()), extent,
               {.instance = 1, .step = 5 * instances, .element = instances},
               {.instance = 15, .step = 5, .element = 1}, tensor);
    for (int64_t i = 0; i < instances; ++i) {
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t e = 0; e < 5; ++e) {
          EXPECT_EQ(tensor.Get(i * 15 + t * 5 + e),
                    static_cast<double>((t * 5 + e) * instances + i));
        }
      }
    }
  }
}

TEST(NumbersTest, AnotherFormatIsConvertedAndNanIsCanonical) {
  const float memory[] = {1.0f, -std::numeric_limits<float>::quiet_NaN()};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    Tensor tensor = Tensor::Zeros(dtype, {2});
    PutNumbers(MemoryType::kF32, reinterpret_cast<const uint8_t*>(memory), {.instances = 2},
               {.instance = 1}, {.instance = 1}, tensor);
    EXPECT_EQ(tensor.Get(0), 1.0);
    EXPECT_TRUE(std::isnan(tensor.Get(1)));
    EXPECT_EQ(tensor.bytes.back(), 0x7F);  // no sign
  }
}

TEST(NumbersTest, UnsignedNumbersAreNotNegative) {
  const uint32_t memory[] = {200, 255, 0x80000000u, 0xFFFFFFFFu};
  const auto put = [&](DType dtype, int64_t count) {
    Tensor tensor = Tensor::Zeros(dtype, {count});
    PutNumbers(MemoryType::kU32, reinterpret_cast<const uint8_t*>(memory), {.instances = count},
               {.instance = 1}, {.instance = 1}, tensor);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(tensor.GetInt(i), memory[i]);
  };
  put(DType::kU32, 4);
  put(DType::kU8, 2);
}

}  // namespace
}  // namespace simgrad::sim::cuda
