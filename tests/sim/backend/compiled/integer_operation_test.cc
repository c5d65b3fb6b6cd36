// Operations of integers against C++'s own, in machine code.
#include "tests/sim/cpu_executor.h"
#include "tests/sim/integer_world.h"

namespace simgrad::tests {
namespace {

TEST(CompiledIntegerOperationTest, GivesWhatCppComputes) {
  ExpectIntegersOn(sim::MakeCpuExecutor());
}

}  // namespace
}  // namespace simgrad::tests
