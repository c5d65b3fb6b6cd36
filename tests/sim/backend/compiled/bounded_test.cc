// Maxima and minima beside a number of the program, in quick and in best machine code.
#include "sim/backend/compiled/compiled_executor.h"
#include "tests/sim/bounded_world.h"

namespace simgrad::tests {
namespace {

using sim::compiled::Effort;

class Bounded : public ::testing::TestWithParam<Effort> {};

TEST_P(Bounded, GivesTheLargerAndTheSmaller) {
  ExpectBoundsOn(sim::compiled::MakeCompiledExecutor({.effort = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(Efforts, Bounded, ::testing::Values(Effort::kQuick, Effort::kBest));

}  // namespace
}  // namespace simgrad::tests
