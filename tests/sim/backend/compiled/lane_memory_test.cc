// Where memory of lanes begins.

#include "sim/backend/compiled/group/lane_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace simgrad::sim::compiled {
namespace {

TEST(LaneMemory, BeginsWhereACacheLineDoes) {
  for (size_t bytes : {1, 24, 100, 5000, 1 << 20}) {
    LaneMemory memory(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u) << bytes;
    memory.resize(3 * bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u) << bytes;
  }
}

}  // namespace
}  // namespace simgrad::sim::compiled
