// Compiled code, quickly made, gives the bits of the reference on the whole series of random cases, alone
// and among others, and on large programs. compiled_equality_test has the other ways to compile.
#include <iostream>
#include <memory>

#include "gtest/gtest.h"
#include "sim/backend/compiled/compiled_executor.h"
#include "tests/sim/equality/expect_equal.h"

namespace simgrad::sim::equality {
namespace {

std::shared_ptr<Executor> Compiled() {
  return compiled::MakeCompiledExecutor(
      compiled::KernelOptions{.effort = compiled::Effort::kQuick});
}

TEST(CompiledSeriesTest, EveryBitIsThatOfTheReference) {
  Coverage coverage;
  ExpectEqualToReference({{"compiled", Compiled()}}, coverage);
  std::cout << coverage.Table();
  if (!IsWholeSeries(coverage)) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

TEST(CompiledSeriesTest, AnInstanceAloneGivesWhatItGivesAmongOthers) {
  ExpectInstancesAlone(Compiled());
}

TEST(CompiledSeriesTest, EveryBitOfALargeProgramIsThatOfTheReference) {
  LargeCoverage coverage;
  ExpectLargeEqualToReference({{"compiled", Compiled()}}, coverage);
  if (coverage.cases() < kLargeCases) return;
  for (const std::string& line : coverage.Missing()) ADD_FAILURE() << "met too rarely: " << line;
}

}  // namespace
}  // namespace simgrad::sim::equality
