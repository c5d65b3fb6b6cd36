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

TEST(CpuEqualityTest, EveryBitOfMatmulIsThatOfTheReferenceHoweverItReadsAndAdds) {
  MatmulCoverage coverage;
  ExpectMatmulsEqualToReference({{"cpu", MakeCpuExecutor()}}, coverage);
  std::cout << coverage.Table();
  if (coverage.cases() < kMatmulCases) return;
  for (const std::string& way : coverage.Missing(5, 1)) ADD_FAILURE() << "met too rarely: " << way;
}

TEST(CpuEqualityTest, AnInstanceAloneGivesWhatItGivesAmongOthers) {
  ExpectInstancesAlone(MakeCpuExecutor());
}

}  // namespace
}  // namespace simgrad::sim::equality
