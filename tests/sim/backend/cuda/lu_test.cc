// Factors of matrices that are not square, in the text for CUDA.
#include "sim/backend/cuda/run/cuda_executor.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"
#include "tests/sim/lu_world.h"

namespace simgrad::tests {
namespace {

TEST(CudaLuTest, MatricesThatAreNotSquareHaveTheBitsOfTheReference) {
  ExpectFactorsOn(std::shared_ptr<sim::Executor>(sim::MakeCudaExecutor(MakeHostShimDevice())));
}

}  // namespace
}  // namespace simgrad::tests
