// Factors of matrices that are not square, in machine code.
#include "tests/sim/cpu_executor.h"
#include "tests/sim/lu_world.h"

namespace simgrad::tests {
namespace {

TEST(CompiledLuTest, MatricesThatAreNotSquareHaveTheBitsOfTheReference) {
  ExpectFactorsOn(sim::MakeCpuExecutor());
}

}  // namespace
}  // namespace simgrad::tests
