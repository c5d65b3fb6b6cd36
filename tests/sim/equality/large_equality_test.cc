// Compiled code gives the bits of the reference on programs of thousands of operations:
// loops in loops, bodies of many operations, arrays of up to 1,000 elements.
#include <iostream>

#include "gtest/gtest.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/expect_equal.h"

namespace simgrad::sim::equality {
namespace {

TEST(LargeEqualityTest, EveryBitOfALargeProgramIsThatOfTheReference) {
  LargeCoverage coverage;
  ExpectLargeEqualToReference({{"cpu", MakeCpuExecutor()}}, coverage);
  std::cout << coverage.Table();
  if (coverage.cases() < kLargeCases) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

}  // namespace
}  // namespace simgrad::sim::equality
