// The reference executor against itself, cut otherwise; and what the random cases cover.
#include <iostream>

#include "gtest/gtest.h"
#include "sim/backend/reference/reference_executor.h"
#include "tests/sim/equality/expect_equal.h"

namespace simgrad::sim::equality {
namespace {

TEST(ReferenceEqualityTest, NoBitDependsOnChunksOrCheckpoints) {
  Coverage coverage;
  ExpectEqualToReference({{"itself", MakeReferenceExecutor()}}, coverage);
  std::cout << coverage.Table();
  if (!IsWholeSeries(coverage)) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

TEST(ReferenceEqualityTest, AnInstanceAloneGivesWhatItGivesAmongOthers) {
  ExpectInstancesAlone(MakeReferenceExecutor());
}

}  // namespace
}  // namespace simgrad::sim::equality
