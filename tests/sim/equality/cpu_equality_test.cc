// Compiled code gives the bits of the reference on random programs, policies and inputs.
#include <iostream>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sanitized.h"
#include "tests/sim/cpu_executor.h"
#include "tests/sim/equality/expect_equal.h"
#include "tests/sim/equality/observed.h"
#include "tests/sim/equality/random_case.h"

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

TEST(CpuEqualityTest, ABatchMayHaveNoInstances) {
  int with_weights = 0;
  for (uint64_t seed = 1; seed <= (kSanitized ? 20 : 50); ++seed) {
    const auto made = MakeCase(seed, {.instances = 0});
    ASSERT_TRUE(made.ok()) << made.status();
    for (const Input& input : made->work.batch.program->program.inputs) {
      with_weights += input.weights ? 1 : 0;
    }
    const auto expected = Observe(MakeReferenceExecutor(), made->work);
    ASSERT_TRUE(expected.ok()) << "seed " << seed << ": " << expected.status();
    const auto actual = Observe(MakeCpuExecutor(), made->work);
    ASSERT_TRUE(actual.ok()) << "seed " << seed << ": " << actual.status();
    const auto difference = FirstDifference(*expected, *actual);
    ASSERT_FALSE(difference.has_value()) << "seed " << seed << ": " << *difference;
  }
  EXPECT_GT(with_weights, 0);
}

}  // namespace
}  // namespace simgrad::sim::equality
