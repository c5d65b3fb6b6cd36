// The vectorised executor gives the bits of the reference on random programs, policies and inputs.
#include <iostream>

#include "gtest/gtest.h"
#include "sim/backend/cpu/cpu_executor.h"
#include "tests/sim/equality/expect_equal.h"

namespace simgrad::sim::equality {
namespace {

// Every instruction set that the machine has, with blocks narrower and wider than the batches.
std::vector<NamedExecutor> CpuExecutors() {
  std::vector<NamedExecutor> executors = {{"cpu", MakeCpuExecutor()}};
  for (const CpuInstructions instructions :
       {CpuInstructions::kBaseline, CpuInstructions::kAvx2, CpuInstructions::kAvx512}) {
    if (!IsSupported(instructions)) continue;
    const std::string name = "cpu, " + std::string(CpuInstructionsName(instructions));
    executors.push_back({name + ", blocks of 16",
                         MakeCpuExecutor({.instructions = instructions, .block_width = 16})});
  }
  return executors;
}

TEST(CpuEqualityTest, EveryBitIsThatOfTheReference) {
  Coverage coverage;
  ExpectEqualToReference(CpuExecutors(), coverage);
  std::cout << coverage.Table();
  if (!IsWholeSeries(coverage)) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

TEST(CpuEqualityTest, AnInstanceAloneGivesWhatItGivesAmongOthers) {
  ExpectInstancesAlone(MakeCpuExecutor());
}

}  // namespace
}  // namespace simgrad::sim::equality
