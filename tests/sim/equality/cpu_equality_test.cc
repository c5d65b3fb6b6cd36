// Compiled code gives the bits of the reference on random programs, policies and inputs.
#include <iostream>

#include "gtest/gtest.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/expect_equal.h"

namespace simgrad::sim::equality {
namespace {

TEST(CpuEqualityTest, EveryBitIsThatOfTheReference) {
  Coverage coverage;
  ExpectEqualToReference({{"cpu", MakeCpuExecutor()}}, coverage);
  std::cout << coverage.Table();
  if (!IsWholeSeries(coverage)) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

TEST(CpuEqualityTest, AnInstanceAloneGivesWhatItGivesAmongOthers) {
  ExpectInstancesAlone(MakeCpuExecutor());
}

}  // namespace
}  // namespace simgrad::sim::equality
